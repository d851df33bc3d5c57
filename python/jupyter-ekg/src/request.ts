// Requests to the Jupyter server's part of jupyter-ekg, and the sentences that users read if one fails.
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

/** An error whose message is a sentence for users. */
export class Problem extends Error {
  /** `status` is that of the server's answer, or 0 if it was no answer. */
  constructor(
    message: string,
    readonly status = 0
  ) {
    super(message);
  }
}

const UNREACHABLE = 'The Jupyter server cannot be reached.';
const LOGIN = 'The Jupyter server asks you to log in. Reload the page.';

/**
 * Says why something failed, for users. The texts of browsers, such as "Failed to fetch", differ between browsers and
 * explain nothing, so that only a server's own sentences are kept.
 */
export function explain(error: unknown): string {
  if (error instanceof Problem) {
    return error.message;
  }
  if (error instanceof ServerConnection.NetworkError) {
    return UNREACHABLE;
  }
  if (error instanceof ServerConnection.ResponseError) {
    const { status } = error.response;
    return refusal(status, error.message.startsWith('Invalid response: ') ? '' : error.message);
  }
  console.warn('jupyter-ekg:', error);
  const unreadable = error instanceof SyntaxError || error instanceof TypeError;
  return unreadable ? 'The answer of the Jupyter server cannot be read.' : 'It has failed.';
}

/** Sends a request to a route of jupyter-ekg. Rejects with a Problem, or if its signal is aborted. */
export async function request(path: readonly string[], init: RequestInit = {}, query = ''): Promise<Response> {
  const settings = ServerConnection.makeSettings();
  const url = URLExt.join(settings.baseUrl, 'jupyter-ekg', ...path.map(encodeURIComponent)) + query;
  let response: Response;
  try {
    response = await ServerConnection.makeRequest(url, init, settings);
  } catch (error) {
    throw init.signal?.aborted ? error : new Problem(UNREACHABLE);
  }
  if (response.redirected) {
    throw new Problem(LOGIN); // to the page with the login
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Problem(refusal(response.status, typeof body?.message === 'string' ? body.message : ''), response.status);
  }
  return response;
}

function refusal(status: number, message: string): string {
  if (status === 401 || (status === 403 && (!message || message === 'Forbidden'))) {
    return LOGIN;
  }
  return message || `The Jupyter server has answered with the error ${status}.`;
}
