/** The longest line of a dialog's text, in characters. */
const WIDTH = 80;

// JupyterLab puts the text of an error into a <pre>, which neither breaks lines nor scrolls.
const STYLE = `
.jp-Dialog-body pre {
  box-sizing: border-box;
  max-width: ${WIDTH}ch;
  max-height: 50vh;
  overflow: auto;
  white-space: pre-wrap;
  overflow-wrap: anywhere;
}`;

/** Makes the text in JupyterLab's dialogs about kernels wrap, and scroll if it is long. */
export function styleDialogs(document: Document): void {
  const style = document.createElement('style');
  style.textContent = STYLE;
  document.head.append(style);
}
