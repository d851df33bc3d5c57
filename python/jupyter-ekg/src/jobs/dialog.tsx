import { Dialog } from '@jupyterlab/apputils';
import { ReactWidget } from '@jupyterlab/ui-components';
import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import * as React from 'react';

import { extent, type IChoice } from './rest';
import type { Then } from './server';

/** What the user has chosen. */
export interface IChosen {
  /** The number of the cell with which the job begins. */
  from: number;
  then: Then;
}

/** The choices, and what they mean. */
class Choices extends ReactWidget implements Dialog.IBodyWidget<IChosen> {
  constructor(
    private readonly all: readonly IChoice[],
    private chosen: IChosen,
    private readonly problem: string
  ) {
    super();
    this.addClass('jp-ekg-Job');
  }

  getValue(): IChosen {
    return this.chosen;
  }

  protected override render(): React.JSX.Element {
    const { from, then } = this.chosen;
    return (
      <>
        <label>
          Begin with
          <select
            className="jp-mod-styled"
            value={from}
            onChange={e => this.choose({ from: Number(e.target.value), then })}
          >
            {this.all.map(({ number, label }) => (
              <option key={number} value={number}>
                {label}
              </option>
            ))}
          </select>
        </label>
        <label>
          The kernel afterwards
          <select
            className="jp-mod-styled"
            value={then}
            onChange={e => this.choose({ from, then: e.target.value as Then })}
          >
            <option value="keep">Keep it, with its variables</option>
            <option value="end">End it, however the job ends</option>
          </select>
        </label>
        <p role="status">{extent(this.all, from)}</p>
        <p>
          The notebook is saved and submitted as it is now. The job runs in this kernel, behind cells that run already.
          Earlier cells keep their outputs. You may close the notebook, the browser and JupyterLab.
        </p>
        <p className="jp-ekg-problem" role="alert">
          {this.problem}
        </p>
      </>
    );
  }

  private choose(chosen: IChosen): void {
    this.chosen = chosen;
    MessageLoop.sendMessage(this, Widget.Msg.UpdateRequest);
  }
}

/** Asks from which cell on a notebook runs as a job. Resolves to undefined if the user cancels. */
export async function ask(
  title: string,
  all: readonly IChoice[],
  chosen: IChosen,
  problem: string
): Promise<IChosen | undefined> {
  const result = await new Dialog<IChosen>({
    title: `Run the rest of ${title} as a job`,
    body: new Choices(all, chosen, problem),
    focusNodeSelector: 'select',
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: 'Submit' })]
  }).launch();
  return result.button.accept && result.value ? result.value : undefined;
}
