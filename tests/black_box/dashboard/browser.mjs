// A browser in front of the dashboard. Arguments: what to do, the address of the dashboard, and what that needs besides.
// It ends with 0 where all was as it should be; what was not stands on its output.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { chromium } = createRequire(`${process.env.NODE_PATH}/`)("playwright-core");
const [scenario, base, ...rest] = process.argv.slice(2);
const PATIENCE = 30_000;

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const context = await browser.newContext({ viewport: { width: 1100, height: 900 } });
context.setDefaultTimeout(PATIENCE);
const page = await context.newPage();

const said = [];
const elsewhere = [];
page.on("console", (message) => {
  if (message.type() === "error" || message.type() === "warning") said.push(message.text());
});
page.on("pageerror", (error) => said.push(String(error)));
page.on("request", (request) => {
  if (new URL(request.url()).origin !== new URL(base).origin) elsewhere.push(request.url());
});

const see = (selector, text) => page.locator(selector).filter({ hasText: text }).first().waitFor();
const open = async () => {
  await page.goto(base);
  await see("#state", "ready");
};
/** Nothing sticks out to the right. */
const fits = () => page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth);
/** Tab until the element in focus says this. */
async function tabTo(text) {
  for (let step = 0; step < 60; step += 1) {
    await page.keyboard.press("Tab");
    const focused = await page.evaluate(() => document.activeElement.textContent || document.activeElement.id || document.activeElement.value);
    if (focused.includes(text)) return;
  }
  assert.fail(`no way by the keyboard to ${text}`);
}

const scenarios = {
  /** It draws, follows traffic, and fits on a phone. */
  async draws(proxy, upstream) {
    await open();
    await see("#path", proxy.replace("http://", ""));
    await see("#path", upstream);
    await see("#attention", "Nothing needs you.");
    await see("#unknown", "None.");
    await see("#running", "None at the moment.");
    await see("#policy", "orders");
    await page.locator("#chart svg").waitFor();
    for (let number = 0; number < 5; number += 1) {
      const headers = { Authorization: "Bearer me", "Idempotency-Key": `drawn-${number % 3}`, "Content-Type": "application/json" };
      const answer = await fetch(`${proxy}/orders`, { method: "POST", headers, body: "{}" });
      assert.equal(answer.status, 201);
      await answer.text();
    }
    await see("#ratio", "2 replayed or joined, 3 executed");
    await see("#ratio", "40 %");
    await page.getByText("Every outcome").click();
    const row = page.locator("#outcomes tr").filter({ hasText: "hit" });
    assert.equal(await row.locator("td").last().textContent(), "2");
    assert.match(await page.locator("#latency tbody").textContent(), /hit.*(ms|µs)/);
    const areas = page.locator("#chart polygon");
    await areas.first().waitFor({ state: "attached" });
    await page.locator("#chart svg").focus();
    await page.keyboard.press("ArrowLeft");
    await see("#chart .tip", "ago");
    await page.locator("#policy summary").first().click();
    await see("#policy dl", "retention");
    for (const width of [360, 768]) {
      await page.setViewportSize({ width, height: 800 });
      assert.ok(await fits(), `it is wider than ${width} px`);
    }
    const stored = await page.evaluate(() => localStorage.length + sessionStorage.length + document.cookie.length);
    assert.equal(stored, 0);
  },

  /** An unknown outcome is set free, by clicks. */
  async release(record) {
    await open();
    await see("#attention", "ended without an answer");
    await page.getByRole("button", { name: `Settle ${record}` }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText(record).waitFor();
    assert.ok(await page.locator("#resolve-go").isDisabled(), "nothing is chosen yet");
    await dialog.getByText("It did not take place").click();
    await see("#resolve-warning", "twice");
    await page.getByRole("button", { name: "Free the key" }).click();
    await see("#toast", "The key is free");
    await see("#unknown", "None.");
  },

  /** An unknown outcome gets its answer, by the keyboard alone. */
  async complete(record) {
    await page.setViewportSize({ width: 360, height: 740 });
    await open();
    await page.getByRole("button", { name: `Settle ${record}` }).waitFor();
    assert.ok(await fits(), "with a record it is wider than 360 px");
    await tabTo("Settle…");
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    await page.keyboard.press("Enter");
    await page.locator("#resolve input[name=outcome]").first().focus();
    await page.keyboard.press("ArrowDown");
    await page.locator("#body").waitFor();
    await tabTo("body");
    await page.keyboard.type('{"id":9}');
    assert.ok(await fits(), "the dialog is wider than 360 px");
    await tabTo("Keep this answer");
    await page.keyboard.press("Enter");
    await see("#toast", "Kept");
    await see("#unknown", "None.");
  },

  /** A record is forgotten, by clicks; leaving it alone changes nothing. */
  async purge(record) {
    await open();
    await page.getByRole("button", { name: `Forget ${record}` }).click();
    await page.getByRole("button", { name: "Keep it" }).click();
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    await page.getByRole("button", { name: `Forget ${record}` }).click();
    await see("#purge", "runs the write again");
    await page.locator("#purge-go").click();
    await see("#toast", "Forgotten");
    await see("#unknown", "None.");
  },

  /** A token is asked for, a wrong one is refused, the right one stays in the page. */
  async token(right) {
    await page.goto(base);
    await see("#sign-in", "admin token");
    assert.ok(await page.locator("#board").isHidden());
    await page.keyboard.type("another");
    await page.keyboard.press("Enter");
    await see("#sign-in-error", "not the token");
    await page.locator("#token").fill(right);
    await page.getByRole("button", { name: "Sign in" }).click();
    await see("#state", "ready");
    await see("#policy", "orders");
    assert.ok(await page.locator("#sign-in").isHidden());
    assert.ok(!(await page.content()).includes(right));
    const stored = await page.evaluate(() => localStorage.length + sessionStorage.length + document.cookie.length);
    assert.equal(stored, 0);
    await page.getByRole("button", { name: "Sign out" }).click();
    await see("#sign-in", "admin token");
    // The browser itself says that it was refused.
    assert.ok(said.length > 0 && said.every((line) => line.includes("401")), said.join("\n"));
    said.length = 0;
  },

  /** The proxy goes and comes back. */
  async gone() {
    await open();
    await context.setOffline(true);
    await see("#state", "no connection");
    await see("#gone", "does not answer");
    await context.setOffline(false);
    await see("#state", "ready");
    await page.locator("#gone").waitFor({ state: "hidden" });
    assert.ok(said.every((line) => line.includes("ERR_INTERNET_DISCONNECTED")), said.join("\n"));
    said.length = 0;
  },
};

try {
  await scenarios[scenario](...rest);
  assert.deepEqual(said, [], "on the console");
  assert.deepEqual(elsewhere, [], "asked of others");
} finally {
  await browser.close();
}
