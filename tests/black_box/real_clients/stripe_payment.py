"""Makes a payment with the `stripe` package as it comes from PyPI: stripe_payment.py API_BASE

The HTTP time-out is shorter than the first answer takes, so that the client retries by itself, with the idempotency
key that it made up itself.
"""
import sys

import stripe

stripe.api_key = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"
stripe.api_base = sys.argv[1]
stripe.max_network_retries = 2
stripe.default_http_client = stripe.RequestsClient(timeout=5)

# The client reports how long a request took with the one after it: the payment carries such a header.
customer = stripe.Customer.create(name="Ada")
payment = stripe.PaymentIntent.create(amount=1200, currency="eur", customer=customer.id, confirm=True)
print(customer.id, payment.id, payment.amount, payment.status)
