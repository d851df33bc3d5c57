// Shared parts of the end to end tests' scripts for Node. A script prints "PASS name" or "FAIL name: why" per check and
// exits 1 if any failed. The environment variables are EKG_URL and EKG_TOKEN of the gateway, and EKG_NODE, the folder
// with node_modules.
import { createRequire } from 'node:module';

export const URL = process.env.EKG_URL.replace(/\/$/, '');
export const TOKEN = process.env.EKG_TOKEN ?? '';
export const KERNELS = (process.env.EKG_KERNELS ?? 'python3').split(',');

// The packages lie outside the tree, where import would not look for them.
export const require = createRequire(process.env.EKG_NODE + '/');

let failed = false;

/** Runs one check with a time limit and prints its result. Returns the check's value, or undefined if it failed. */
export async function check(name, fn, seconds = 60) {
  const began = Date.now();
  try {
    const result = await within(seconds, fn());
    console.log(`PASS ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
    return result;
  } catch (e) {
    failed = true;
    console.error(e);
    console.log(`FAIL ${name}: ${String(e.message ?? e).replace(/\s+/g, ' ').slice(0, 500)}`);
    return undefined;
  }
}

export function finish() {
  process.exit(failed ? 1 : 0);
}

/** Rejects if the promise takes longer than the given seconds. */
export async function within(seconds, promise, what = 'it') {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took more than ${seconds} s`)), seconds * 1000);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Polls get() until its value is true, and returns the value. */
export async function until(get, seconds, what) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const value = await get();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`not within ${seconds} s: ${what}`);
    await new Promise(resolve => setTimeout(resolve, 50));
  }
}

export function equal(got, want, what) {
  if (JSON.stringify(got) !== JSON.stringify(want)) {
    throw new Error(`${what}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
  }
}

/** Sends a request to the gateway itself and returns the JSON response. */
export async function rest(path, options = {}) {
  const response = await fetch(URL + path, { ...options, headers: { Authorization: `token ${TOKEN}`, 'Content-Type': 'application/json' } });
  const text = await response.text();
  if (!response.ok) throw new Error(`${options.method ?? 'GET'} ${path}: ${response.status} ${text.slice(0, 300)}`);
  return text ? JSON.parse(text) : undefined;
}
