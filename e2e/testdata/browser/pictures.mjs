// Takes the documentation's pictures of JupyterLab and writes them to the folder EKG_PICTURES.
//
// With EKG_GATEWAY_PID, the gateway's process, a cell kills the gateway; POST EKG_CONTROL/start starts a new one. With
// EKG_IDLE, the gateway's idle timeout in seconds, pictures show the end of an idle kernel.
import { check, finish, rest, until } from '../js/checks.mjs';
import { Lab, picture } from './lab.mjs';

const lab = await Lab.start();

/** Opens a notebook in a window of this width, whose picture has 1,200 pixels. A new notebook gets these cells. */
async function open(name, cells, width, height = 760) {
  if (cells) lab.write(name, cells);
  const window = await lab.window({ viewport: { width, height }, deviceScaleFactor: 1200 / width });
  const notebook = await lab.open(name, { window });
  await notebook.page.addStyleTag({ content: '.jp-cell-toolbar { display: none !important; }' });
  await notebook.command('application:toggle-left-area');
  return notebook;
}

const TRAINING = `for epoch in range(1, 11):
    if epoch == 4:
        os.kill(ekg, signal.SIGKILL)  # kill -9 of the gateway
    loss = 2 / (epoch + 1)
    print(datetime.now().strftime("%X"), f"epoch {epoch:2}  loss {loss:.3f}")
    sleep(1)`;

async function gatewayKilled() {
  const setup = `import os, signal\nfrom datetime import datetime\nfrom time import sleep\nekg = ${process.env.EKG_GATEWAY_PID}`;
  const notebook = await open('train.ipynb', [setup, TRAINING, 'loss'], 800);
  await notebook.connected(60);
  await notebook.run(0);
  await notebook.finished(0);
  await notebook.run(1);
  await notebook.printed(1, 'the connection to the gateway is lost', 40);
  await picture(notebook.page, 'gateway-away', [notebook.cell(1)], 4);
  const response = await fetch(`${process.env.EKG_CONTROL}/start`, { method: 'POST' });
  if (!response.ok) throw new Error(await response.text());
  await notebook.finished(1, 60);
  await notebook.run(2, 'Control+Enter');
  await notebook.finished(2, 20);
  await until(async () => !(await notebook.output(1)).includes('[ekg]'), 30, 'the sentence about the gateway is gone');
  await picture(notebook.page, 'output-after-kill', [notebook.cell(1), notebook.cell(2)], 4);
  await notebook.close();
}

async function idle() {
  const notebook = await open('report.ipynb', ['sales = {"May": 120, "June": 144}\nprint(sales["June"] / sales["May"])'], 800);
  await notebook.connected(30);
  await notebook.run(0, 'Control+Enter');
  await notebook.printed(0, '[ekg] This kernel was ended', Number(process.env.EKG_IDLE) + 30);
  await picture(notebook.page, 'idle-notice', [notebook.cell(0)], 4);
  await notebook.close();
  const late = await open('report.ipynb', undefined, 900, 360);
  await late.dialog.getByText('it was idle').waitFor({ timeout: 30000 });
  await picture(late.page, 'dialog-reason', [late.dialog], 0);
  await late.close();
}

if (process.env.EKG_GATEWAY_PID) await check('output that came back after kill -9 of the gateway', gatewayKilled, 240);
if (process.env.EKG_IDLE) await check('why a kernel was ended, in the cell of an open page and in the dialog of a new one', idle, 240);
await lab.stop();
finish();
