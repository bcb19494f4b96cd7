"""Makes payments with the `gocardless_pro` package as it comes from PyPI: gocardless_calls.py BASE_URL KEY:AMOUNT...

The key `-` leaves it to the client to make one up. A line is printed for each: the payment, or the client's own error.
"""
import sys

import gocardless_pro

base, *calls = sys.argv[1:]
client = gocardless_pro.Client(access_token="sandbox_1", base_url=base, timeout=3)
for call in calls:
    key, amount = call.split(":")
    params = {"amount": int(amount), "currency": "EUR", "links": {"mandate": "MD1"}}
    try:
        made = client.payments.create(params, headers=None if key == "-" else {"Idempotency-Key": key})
        print(made.id, made.amount)
    except gocardless_pro.errors.GoCardlessProError as error:
        print(f"{type(error).__name__}: {error}")
