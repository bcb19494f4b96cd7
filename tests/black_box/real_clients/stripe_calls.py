"""Calls Stripe's API with the `stripe` package as it comes from PyPI: stripe_calls.py API_BASE VERSION KEY:NUMBER...

Each KEY:NUMBER is one call: with VERSION v1 a charge of that amount, with v2 an event destination of that name. The
key `-` leaves it to the client to make one up. A line is printed for each: the object, or the client's own error.
"""
import sys

import stripe

base, version, *calls = sys.argv[1:]
client = stripe.StripeClient(
    "sk_test_4eC39HqLyjWDarjtT1zdp7dc",
    base_addresses={"api": base},
    max_network_retries=8,
    http_client=stripe.RequestsClient(timeout=3),
)


def make(number, options):
    if version == "v1":
        return client.v1.charges.create({"amount": int(number), "currency": "eur", "source": "tok_visa"}, options)
    return client.v2.core.event_destinations.create(
        {"name": number, "type": "webhook_endpoint", "event_payload": "thin", "enabled_events": ["v1.a"]}, options
    )


for call in calls:
    key, number = call.split(":")
    try:
        made = make(number, {} if key == "-" else {"idempotency_key": key})
        said, headers = f"{made.object} {made.id}", made.last_response.headers
    except stripe.StripeError as error:
        said, headers = f"{type(error).__name__} {error.http_status} {error.error.code}", error.headers
    print(said, "again" if headers.get("Idempotent-Replayed") == "true" else "new")
