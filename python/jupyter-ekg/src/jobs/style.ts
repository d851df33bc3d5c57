/** The style of the dialog for a job. */
export const JOBS = `
.jp-ekg-Job { max-width: 440px; min-width: 320px; }
.jp-ekg-Job label { display: block; margin-bottom: 8px; }
.jp-ekg-Job p { margin: 0 0 8px; }
.jp-ekg-Job .jp-ekg-problem { overflow-wrap: anywhere; }
.jp-ekg-Job select.jp-mod-styled {
  background: var(--jp-layout-color1); border: 1px solid var(--jp-border-color1); color: var(--jp-ui-font-color1);
  display: block; height: 32px; margin-top: 4px; padding: 0 4px; width: 100%;
}
`;
