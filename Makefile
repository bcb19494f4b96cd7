# What one does with this repository. `make test` is all that a clean checkout needs.

CARGO ?= cargo

.PHONY: build test test-redis lint bench demo

build:
	$(CARGO) build --release --locked

# Unit tests, black-box tests on the built binary, examples in the documentation.
test:
	scripts/install-test-tools
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
	  set -ex; $(CARGO) nextest run --locked; $(CARGO) test --doc --locked; \
	else \
	  set -ex; $(CARGO) test --locked; \
	fi

# The tests of the Redis store on the oldest and the latest server that it takes, and on Valkey where that is to be had.
test-redis:
	scripts/redis-versions

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --locked

bench:
	$(CARGO) bench --locked

demo:
	$(CARGO) run --release --locked -- demo
