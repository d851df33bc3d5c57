import { ReactWidget } from '@jupyterlab/ui-components';
import { Signal, type ISignal } from '@lumino/signaling';
import * as React from 'react';

import type { IKernelModel } from './kernels';
import * as texts from './texts';

/** The item of the status bar: the GPU, the idle time and the end of the current notebook's kernel. */
export class KernelStatus extends ReactWidget {
  constructor(
    private readonly kernel: () => IKernelModel | undefined,
    private readonly open: () => void
  ) {
    super();
    this.addClass('jp-ekg-Status');
  }

  /** Is emitted when the item begins or ceases to have something to say. */
  get activeChanged(): ISignal<this, void> {
    return this._activeChanged;
  }

  /** Whether there is something to say. */
  get active(): boolean {
    return this.text !== '';
  }

  /** Looks at the kernel and at the clock again. */
  refresh(): void {
    const kernel = this.kernel();
    const before = this.active;
    this.text = kernel ? texts.summary(kernel, Date.now()) : '';
    this.title_ = kernel ? texts.details(kernel, Date.now()) : '';
    if (this.active !== before) {
      this._activeChanged.emit();
    }
    this.update();
  }

  protected override render(): React.JSX.Element | null {
    if (!this.active) {
      return null;
    }
    return (
      <button
        type="button"
        className="jp-ekg-status"
        title={`${this.title_}\nClick to show all kernels`}
        aria-label={`Kernel: ${this.text}. Show all kernels`}
        onClick={this.open}
      >
        {this.text}
      </button>
    );
  }

  private text = '';
  private title_ = '';
  private readonly _activeChanged = new Signal<this, void>(this);
}
