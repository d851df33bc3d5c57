import { Dialog } from '@jupyterlab/apputils';
import { ReactWidget } from '@jupyterlab/ui-components';
import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import * as React from 'react';

import { explain } from '../request';
import { share } from './server';
import type { IGrant } from './kernels';
import type { IRow } from './rows';

/** The list of grants in the dialog, with a line for one more. */
class Grants extends ReactWidget implements Dialog.IBodyWidget<IGrant[]> {
  constructor(
    private grants: IGrant[],
    private readonly problem: string
  ) {
    super();
    this.addClass('jp-ekg-Grants');
  }

  /** Returns the grants, with the one whose name was typed and not added. */
  getValue(): IGrant[] {
    const name = this.name.trim();
    return name ? [...this.grants, this.grant(name)] : this.grants;
  }

  /** Adds the typed grant. */
  add(): void {
    this.grants = this.getValue();
    this.set({ name: '' });
    this.node.querySelector('input')?.focus();
  }

  protected override render(): React.JSX.Element {
    return (
      <>
        <p>Users with “read” see the output. Users with “use” also run code, with your rights and files.</p>
        {this.grants.length > 0 && <ul aria-label="Shared with">{this.grants.map((_, i) => this.line(i))}</ul>}
        <div className="jp-ekg-Grants-new">
          <select
            aria-label="User or group"
            className="jp-mod-styled"
            value={this.kind}
            onChange={e => this.set({ kind: e.target.value as 'user' | 'group' })}
          >
            <option value="user">User</option>
            <option value="group">Group</option>
          </select>
          <input
            aria-label="Name"
            className="jp-mod-styled"
            placeholder="Name"
            value={this.name}
            onChange={e => this.set({ name: e.target.value })}
          />
          {this.rights('Right', this.right, right => this.set({ right }))}
          <button type="button" className="jp-mod-styled jp-mod-reject" onClick={() => this.add()}>
            Add
          </button>
        </div>
        <p className="jp-ekg-problem" role="alert">
          {this.problem}
        </p>
      </>
    );
  }

  private line(i: number): React.JSX.Element {
    const { user, group, right } = this.grants[i]!;
    const name = user ?? `group ${group}`;
    return (
      <li key={`${user ?? ''}/${group ?? ''}/${i}`}>
        <span>{name}</span>
        {this.rights(`Right of ${name}`, right, right => {
          this.grants = this.grants.map((grant, n) => (n === i ? { ...grant, right } : grant));
          this.update();
        })}
        <button
          type="button"
          className="jp-mod-styled jp-mod-reject"
          aria-label={`Remove ${name}`}
          onClick={() => {
            this.grants = this.grants.filter((_, n) => n !== i);
            this.update();
            this.node.querySelector('input')?.focus();
          }}
        >
          Remove
        </button>
      </li>
    );
  }

  private rights(label: string, right: IGrant['right'], change: (right: IGrant['right']) => void): React.JSX.Element {
    return (
      <select
        aria-label={label}
        className="jp-mod-styled"
        value={right}
        onChange={e => change(e.target.value as IGrant['right'])}
      >
        <option value="read">read</option>
        <option value="use">use</option>
      </select>
    );
  }

  private grant(name: string): IGrant {
    return this.kind === 'user' ? { user: name, right: this.right } : { group: name, right: this.right };
  }

  private set(change: { kind?: 'user' | 'group'; name?: string; right?: IGrant['right'] }): void {
    Object.assign(this, change);
    // At once: until an update the input has the old name, to which the next letters would be added.
    MessageLoop.sendMessage(this, Widget.Msg.UpdateRequest);
  }

  private kind: 'user' | 'group' = 'user';
  private name = '';
  private right: IGrant['right'] = 'read';
}

/** A dialog in which Enter adds the typed name, and does what a button in the body does. JupyterLab's own would take
 * each Enter as its default button. */
class ShareDialog extends Dialog<IGrant[]> {
  constructor(
    title: string,
    private readonly grants: Grants
  ) {
    // JupyterLab moves the focus when the body is drawn, which may be after the first letter.
    const buttons = [Dialog.cancelButton(), Dialog.okButton({ label: 'Share' })];
    super({ title, body: grants, focusNodeSelector: 'input', buttons });
  }

  override handleEvent(event: Event): void {
    const target = event.target as HTMLElement;
    if (event.type === 'keydown' && (event as KeyboardEvent).key === 'Enter' && this.grants.node.contains(target)) {
      if (!(target instanceof HTMLInputElement)) {
        return;
      }
      if (target.value.trim()) {
        event.preventDefault();
        event.stopPropagation();
        this.grants.add();
        return;
      }
    }
    super.handleEvent(event);
  }
}

/** Asks with whom a kernel is shared, and shares it. The dialog stays with the gateway's sentence if it refuses. */
export async function askAndShare({ kernel, title }: IRow): Promise<void> {
  let grants = kernel.shared_with ?? [];
  let problem = '';
  for (;;) {
    const result = await new ShareDialog(`Share the kernel of ${title}`, new Grants(grants, problem)).launch();
    if (!result.button.accept || !result.value) {
      return;
    }
    grants = result.value;
    try {
      await share(kernel.id, grants);
      return;
    } catch (error) {
      problem = explain(error);
    }
  }
}
