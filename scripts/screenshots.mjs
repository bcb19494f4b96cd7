// Takes the pictures for scripts/screenshots: the dashboard's address, the proxy's, and where they go.
import { createRequire } from "node:module";

const { chromium } = createRequire(`${process.env.NODE_PATH}/`)("playwright-core");
const [dashboard, proxy, folder] = process.argv.slice(2);

async function pay(order, amount) {
  const headers = { Authorization: "Bearer demo", "Idempotency-Key": order, "Content-Type": "application/json" };
  const answer = await fetch(`${proxy}/payments`, { method: "POST", headers, body: JSON.stringify({ amount }) });
  await answer.text();
}

/** A quarter of an hour as a payments service may have it, the same each time. */
function sample(told) {
  let seed = 7;
  const random = () => {
    seed = (seed * 16807) % 2147483647;
    return seed / 2147483647;
  };
  const lately = {};
  const intervals = Array.from({ length: 180 }, (_, index) => {
    const wave = 1 + 0.45 * Math.sin(index / 19) + 0.2 * Math.sin(index / 5);
    const burst = index > 96 && index < 118 ? 1 + 2.4 * Math.sin(((index - 96) / 22) * Math.PI) : 1;
    const failing = index > 98 && index < 110 ? 9 : 0.12;
    const some = (mean) => Math.max(0, Math.round(5 * mean * (0.86 + 0.28 * random())));
    const requests = {
      miss: some(21 * wave), hit: some(5.5 * wave * burst), joined: some(0.8 * wave * burst), passthrough: some(11 * wave),
      mismatch: some(0.35), conflict: some(0.5 * burst), upstream_failure: some(failing),
    };
    for (const [name, count] of Object.entries(requests)) lately[name] = (lately[name] ?? 0) + count;
    return { ago_s: (179 - index) * 5 + 1, for_s: 5, requests };
  });
  const requests = Object.fromEntries(Object.entries(lately).map(([name, count]) => [name, count * 31 + Math.round(performance.now() / 1000 * count / 900)]));
  const latency = {
    over_s: 300,
    hit: { count: 1904, p50_s: 0.00021, p90_s: 0.00042, p99_s: 0.0009 },
    miss: { count: 6420, p50_s: 0.038, p90_s: 0.081, p99_s: 0.212 },
    passthrough: { count: 3377, p50_s: 0.0061, p90_s: 0.014, p99_s: 0.046 },
  };
  return { ...told, intervals, latency, totals: { ...told.totals, requests }, trouble: { over_s: 900, counts: told.trouble.counts } };
}

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"] });

async function shoot(name, { scheme, width = 1120, height = 900, busy = false, whole = true, before = async () => {} }) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, reducedMotion: "reduce" });
  const page = await context.newPage();
  if (busy) {
    await page.route("**/api/v1/history", async (route) => {
      const answer = await route.fetch();
      await route.fulfill({ response: answer, json: sample(await answer.json()) });
    });
  }
  await page.goto(dashboard);
  await page.locator("#state").filter({ hasText: "ready" }).waitFor();
  if (busy) await page.locator("#rate").filter({ hasText: /[1-9]/ }).waitFor();
  await before(page);
  await page.screenshot({ path: `${folder}/${name}.png`, fullPage: whole });
  await context.close();
}

await shoot("empty-light", { scheme: "light", height: 1000, whole: false });
await shoot("empty-dark", { scheme: "dark", height: 1000, whole: false });
for (let order = 0; order < 12; order += 1) await pay(`order-${order % 9}`, 100 + (order % 9));
for (const order of ["lost-1", "lost-2"]) await pay(order, 1313);
await shoot("busy-light", { scheme: "light", height: 1060, busy: true, whole: false });
await shoot("busy-dark", { scheme: "dark", height: 1060, busy: true, whole: false });
await shoot("phone", { scheme: "light", width: 360, height: 1300, busy: true, whole: false });
await shoot("settle", {
  scheme: "light", height: 720, busy: true, whole: false,
  before: async (page) => {
    await page.getByRole("button", { name: /^Settle/ }).first().click();
    await page.getByText("It did not take place").click();
  },
});
await browser.close();
