/** The style of the panel and of the item in the status bar, in JupyterLab's own colors and sizes. */
export const STYLE = `
.jp-ekg-Kernels {
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
  display: flex;
  flex-direction: column;
  min-width: 180px;
  overflow-y: auto;
  scrollbar-gutter: stable;
}
.jp-ekg-Kernels:focus { outline: none; }
.jp-ekg-Kernels p, .jp-ekg-Kernels ul { margin: 0; padding: 0; list-style: none; }
.jp-ekg-Kernels button {
  appearance: none; background: none; border: 0; color: inherit; cursor: pointer; font: inherit; padding: 0;
}
.jp-ekg-Kernels button:focus-visible, .jp-ekg-status:focus-visible {
  outline: 1px solid var(--jp-brand-color1); outline-offset: -1px;
}
.jp-ekg-section {
  align-items: center; border-bottom: 1px solid var(--jp-border-color2); box-sizing: border-box; display: flex;
  font-size: var(--jp-ui-font-size0); font-weight: 600; height: 32px; letter-spacing: 1px; margin: 0; padding: 0 12px;
  text-transform: uppercase;
}
.jp-ekg-filter {
  background: var(--jp-layout-color1); flex: none; padding: 8px 12px; position: sticky; top: 0; z-index: 1;
}
.jp-ekg-filter > input.jp-mod-styled { box-sizing: border-box; height: 28px; padding: 0 8px; width: 100%; }
.jp-ekg-Kernels .jp-ekg-rest:not(:empty) { color: var(--jp-ui-font-color2); padding: 8px 12px; }
.jp-ekg-count { color: var(--jp-ui-font-color2); font-weight: normal; margin-left: 8px; }
.jp-ekg-health { color: var(--jp-ui-font-color1); overflow-wrap: anywhere; }
.jp-ekg-Kernels .jp-ekg-health:not(:empty) {
  background: var(--jp-warn-color3); border-top: 1px solid var(--jp-border-color2); bottom: 0; margin-top: auto;
  padding: 6px 12px; position: sticky;
}
[data-jp-theme-light='false'] .jp-ekg-health:not(:empty) { background: var(--jp-layout-color3); }
.jp-ekg-Kernels .jp-ekg-empty { color: var(--jp-ui-font-color2); padding: 8px 12px; }
.jp-ekg-row { border-bottom: 1px solid var(--jp-border-color2); line-height: 20px; padding: 6px 8px 8px 12px; }
.jp-ekg-row > p { margin-left: 22px !important; overflow-wrap: anywhere; }
.jp-ekg-head { align-items: center; display: flex; gap: 6px; height: 24px; }
.jp-ekg-icon { display: inline-flex; flex: none; }
.jp-ekg-title {
  flex: 1; min-width: 0; overflow: hidden; text-align: left; text-overflow: ellipsis; white-space: nowrap;
}
button.jp-ekg-title:hover { text-decoration: underline; }
.jp-ekg-more { border-radius: var(--jp-border-radius); display: inline-flex; flex: none; padding: 4px !important; }
.jp-ekg-more:hover, .jp-ekg-action:hover { background: var(--jp-layout-color2) !important; }
.jp-ekg-state, .jp-ekg-memory, .jp-ekg-shared { color: var(--jp-ui-font-color2); }
.jp-ekg-state, .jp-ekg-shared { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.jp-ekg-spec::before { content: '·'; margin: 0 5px; }
.jp-ekg-dot {
  background: transparent; border: 2px solid var(--jp-ui-font-color2); border-radius: 50%; box-sizing: border-box;
  display: inline-block; height: 10px; margin-right: 6px; width: 10px;
}
[data-state='busy'] .jp-ekg-dot { background: var(--jp-ui-font-color2); }
[data-state='starting'] .jp-ekg-dot, [data-state='restarting'] .jp-ekg-dot { border-style: dotted; }
[data-state='dead'] .jp-ekg-dot { border-color: var(--jp-error-color1); border-radius: 0; }
.jp-ekg-reason {
  color: var(--jp-ui-font-color1); display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 6;
  overflow: hidden;
}
.jp-ekg-line { align-items: center; display: flex; flex-wrap: wrap; gap: 0 8px; justify-content: space-between; }
.jp-ekg-line, .jp-ekg-memory, .jp-ekg-status { font-variant-numeric: tabular-nums; }
.jp-ekg-line.jp-mod-soon > span { font-weight: 600; }
.jp-ekg-line > span:first-child { min-width: 0; overflow: hidden; text-overflow: ellipsis; }
.jp-ekg-Kernels .jp-ekg-action {
  align-items: center; border: 1px solid var(--jp-border-color1); border-radius: var(--jp-border-radius);
  display: inline-flex; font-size: var(--jp-ui-font-size0); height: 20px; line-height: 18px; padding: 0 6px;
}
.jp-ekg-use { align-items: center; display: inline-flex; gap: 6px; }
.jp-ekg-use svg { overflow: visible; }
.jp-ekg-curve {
  fill: none; stroke: var(--jp-brand-color1); stroke-linecap: round; stroke-linejoin: round; stroke-width: 1.5;
}
.jp-ekg-axis { stroke: var(--jp-border-color1); stroke-width: 1; }
.jp-ekg-shared .jp-ekg-icon { margin-right: 4px; vertical-align: middle; }
.jp-ekg-problem { color: var(--jp-error-color0, var(--jp-error-color1)); overflow-wrap: anywhere; }
[data-jp-theme-light='false'] .jp-ekg-problem { color: var(--jp-error-color3, #ff8a80); }
.jp-ekg-status {
  appearance: none; background: none; border: 0; color: inherit; cursor: pointer; font: inherit; height: 100%;
  line-height: 24px; max-width: 50vw; overflow: hidden; padding: 0 4px; text-overflow: ellipsis; white-space: nowrap;
}
.jp-ekg-status:hover { background: var(--jp-layout-color3, rgba(128, 128, 128, 0.3)); }
.jp-ekg-Grants { min-width: 320px; max-width: 440px; }
.jp-ekg-Grants p { margin: 0 0 8px; }
.jp-ekg-Grants ul { list-style: none; margin: 0 0 8px; max-height: 40vh; overflow-y: auto; padding: 0; }
.jp-ekg-Grants li, .jp-ekg-Grants-new { align-items: center; display: flex; gap: 6px; margin-bottom: 4px; }
.jp-ekg-Grants li > span, .jp-ekg-Grants-new > input.jp-mod-styled {
  flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis;
}
.jp-ekg-Grants select.jp-mod-styled {
  background: var(--jp-layout-color1); border: 1px solid var(--jp-border-color1); color: var(--jp-ui-font-color1);
  flex: none; height: 32px; padding: 0 4px; width: auto;
}
.jp-ekg-Grants button.jp-mod-styled { flex: none; margin: 0; }
`;
