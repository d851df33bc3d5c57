import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { IGrant } from './kernels';

async function send(path: string[], init: RequestInit): Promise<Response> {
  const settings = ServerConnection.makeSettings();
  const url = URLExt.join(settings.baseUrl, 'jupyter-ekg', ...path.map(encodeURIComponent));
  let response: Response;
  try {
    response = await ServerConnection.makeRequest(url, init, settings);
  } catch (error) {
    if (init.signal?.aborted) {
      throw error;
    }
    throw new Error('The Jupyter server cannot be reached.');
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(String(body.message || response.statusText || `The answer has the status ${response.status}.`));
  }
  return response;
}

/** Opens the stream of kernels. */
export function openEvents(signal: AbortSignal): Promise<Response> {
  return send(['events'], { signal, cache: 'no-store' });
}

/** Keeps a kernel until that time, or no longer. Rejects with the gateway's sentence, as the others here. */
export async function keep(id: string, until: Date | null): Promise<void> {
  await send(['kernels', id], { method: 'PATCH', body: JSON.stringify({ keep_until: until?.toISOString() ?? null }) });
}

/** Replaces the list of those with whom a kernel is shared. */
export async function share(id: string, grants: readonly IGrant[]): Promise<void> {
  await send(['kernels', id], { method: 'PATCH', body: JSON.stringify({ shared_with: grants }) });
}

/** Interrupts, restarts or ends a kernel that the Jupyter server has not started. */
export async function act(id: string, action: 'interrupt' | 'restart' | 'shutdown'): Promise<void> {
  await (action === 'shutdown'
    ? send(['kernels', id], { method: 'DELETE' })
    : send(['kernels', id, action], { method: 'POST' }));
}
