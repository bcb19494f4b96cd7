// Calls Stripe's API with the `stripe` package as it comes from npm: stripe_calls.mjs API_BASE VERSION KEY:NUMBER...
//
// Each KEY:NUMBER is one call: with VERSION v1 a charge of that amount, with v2 an event destination of that name. The
// key `-` leaves it to the client to make one up. A line is printed for each: the object, or the client's own error.
// NODE_PATH says where the package is.
import { createRequire } from "node:module";

const Stripe = createRequire(import.meta.url)("stripe");
const [base, version, ...calls] = process.argv.slice(2);
const { hostname, port } = new URL(base);
const stripe = new Stripe("sk_test_4eC39HqLyjWDarjtT1zdp7dc", {
  host: hostname,
  port,
  protocol: "http",
  timeout: 3000,
  maxNetworkRetries: 8,
});

function make(number, options) {
  if (version === "v1") {
    return stripe.charges.create({ amount: Number(number), currency: "eur", source: "tok_visa" }, options);
  }
  return stripe.v2.core.eventDestinations.create(
    { name: number, type: "webhook_endpoint", event_payload: "thin", enabled_events: ["v1.a"] },
    options,
  );
}

for (const call of calls) {
  const [key, number] = call.split(":");
  let said, headers;
  try {
    const made = await make(number, key === "-" ? {} : { idempotencyKey: key });
    [said, headers] = [`${made.object} ${made.id}`, made.lastResponse.headers];
  } catch (error) {
    if (!(error instanceof Stripe.errors.StripeError)) throw error;
    [said, headers] = [`${error.type} ${error.statusCode} ${error.code}`, error.headers];
  }
  console.log(said, headers["idempotent-replayed"] === "true" ? "again" : "new");
}
