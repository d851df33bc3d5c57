// Requests to the gateway. The token is in a header only, and is kept in the tab's sessionStorage.

/** Where the page lies: the gateway's base URL. */
const base = (): URL => new URL('.', document.baseURI);
const place = (): string => `ekg-token:${base().pathname}`;

export interface GPU { uuid: string; model?: string; memory_total?: number; memory_used: number;
  utilization: number | null; busy_since?: string; idle_since?: string; error?: string }
export interface Grant { user?: string; group?: string; right: 'read' | 'use' }
/** What has become of the GPU of a kernel that may be parked. */
export interface Parked { state?: 'none' | 'held' | 'parking' | 'parked' | 'waking' | 'failed'; since?: string;
  reason?: string; keep_gpu_until?: string }
export interface Kernel {
  id: string; name: string; last_activity: string; execution_state: string; connections: number; created: string;
  memory?: number; reason?: string; cull_at?: string; keep_until?: string;
  gpu?: GPU[]; gpus?: number; flavor?: string; owner?: string; parked?: Parked;
  job?: { id: string; name: string; cell: number; cells: number };
  shared_with?: Grant[]; shared_to_use?: boolean;
}
export interface Ended { id: string; name: string; owner?: string; reason: string; ended_at: string; culled_at?: string;
  seconds?: number; gpu_seconds?: number }
export interface Holder { kernel?: string; owner?: string; pod?: string; namespace?: string; amount: number;
  devices?: Record<string, number>; busy: number; measured: number; idle_since?: string; ending?: boolean }
export interface Amounts { total: number; held: number; measured: number; busy: number; unhealthy: number }
/** What is kept ready before any user asks. Amounts.held does not include it. */
export interface Ready { warm?: number }
export interface Ahead { kind: 'warm'; kernelspec: string; flavor?: string; wanted: number; ready: number;
  waiting: number; reason?: string }
export interface Pool extends Amounts, Ready { resource: string; model?: string; unit: string; others: number;
  holders: Holder[];
  devices?: PoolDevice[] }
export interface PoolDevice { index: number; uuid?: string; total: number; held: number }
export interface GPUView { totals: (Amounts & Ready & { resource: string; unit: string })[]; missing: string[];
  ahead?: Ahead[]; // absent in answers of earlier gateways
  nodes: { name: string; status?: string; pools: Pool[] }[] }
export interface UsageRow { name: string; kernels: number;
  held_seconds: number; measured_seconds: number; busy_seconds: number }
export interface Series { name: string; kernel_seconds: number[]; held_seconds: number[]; busy_seconds: number[] }
export interface UsageAnswer { since: string; until: string; usage: UsageRow[];
  steps?: { seconds: number; groups: Series[]; others?: Series } }
export interface Replica { name: string; self?: boolean; version?: string; started?: string;
  ready: boolean; problem?: string }
export interface Timeline { since: string; until: string; events: { at: string; kind: string; text?: string }[];
  memory?: number; memory_at?: string; events_dropped: number;
  step_seconds: number; busy_seconds: number[]; missing?: string }
export interface Limit { limit: string; of?: string; unit: string; most: number; used: number }

/** An answer that is an error, with the gateway's sentence. */
export class Refused extends Error {
  constructor(readonly status: number, message: string) { super(message); }
}

/** Takes a token out of the URL's fragment, where it reaches no server and no log. Takes it also out of the query,
 * since ekg prints such a URL when it has generated a token. The address then has no token any more. */
export function takeToken(): void {
  const fragment = new URLSearchParams(location.hash.slice(1)), query = new URLSearchParams(location.search);
  const token = fragment.get('token') ?? query.get('token');
  if (token === null) return;
  setToken(token);
  fragment.delete('token');
  query.delete('token');
  const left = `${query.size ? `?${query}` : ''}${fragment.size ? `#${fragment}` : ''}`;
  history.replaceState(null, '', `${location.pathname}${left}`);
}

export function setToken(token: string): void {
  if (token) sessionStorage.setItem(place(), token);
  else sessionStorage.removeItem(place());
}

export function hasToken(): boolean { return sessionStorage.getItem(place()) !== null; }

/** Sends a request to a path below the base URL. A status other than 2xx is thrown as Refused. */
export async function request(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  const token = sessionStorage.getItem(place());
  if (token !== null) headers.set('Authorization', `token ${token}`);
  if (options.body !== undefined) headers.set('Content-Type', 'application/json');
  const answer = await fetch(new URL(path, base()), { ...options, headers, credentials: 'omit', cache: 'no-store' });
  if (answer.ok) return answer;
  let text = answer.statusText;
  try {
    text = String((await answer.json()).message);
  } catch {
    text ||= `The answer has the status ${answer.status}.`; // of a proxy in front, which has no sentence
  }
  throw new Refused(answer.status, text);
}

/** What a user reads about a request that failed. A browser has its own words for a gateway that is away. */
export function problemOf(e: unknown): string {
  if (e instanceof Refused) return e.message;
  return 'The gateway does not answer. The page tries again.';
}

export async function read<T>(path: string): Promise<T> { return await (await request(path)).json() as T; }

export const kernelPath = (id: string, action = ''): string => `api/kernels/${encodeURIComponent(id)}${action}`;
