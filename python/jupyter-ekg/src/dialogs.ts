/** The longest line of a dialog's text, in characters. */
const WIDTH = 80;

/**
 * Makes the text in JupyterLab's dialogs about kernels wrap, and scroll if it is long. JupyterLab puts the text of an
 * error into a <pre>, which does neither.
 */
export const DIALOGS = `
.jp-Dialog-body pre {
  box-sizing: border-box;
  max-width: ${WIDTH}ch;
  max-height: 50vh;
  overflow: auto;
  white-space: pre-wrap;
  overflow-wrap: anywhere;
}`;

/** Adds a style sheet to the page. */
export function addStyle(document: Document, sheet: string): void {
  const style = document.createElement('style');
  style.textContent = sheet;
  document.head.append(style);
}
