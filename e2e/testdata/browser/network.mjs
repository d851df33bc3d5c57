// A network between a browser and a server. It can be cut.
import { once } from 'node:events';
import { connect, createServer } from 'node:net';

export class Network {
  /** Listens on a new port and forwards connections to the server's port. */
  static async to(port) {
    const network = new Network();
    network.links = new Set();
    network.down = false;
    network.server = createServer(browser => network.#carry(browser, port)).listen(0, '127.0.0.1');
    await once(network.server, 'listening');
    network.url = `http://127.0.0.1:${network.server.address().port}`;
    return network;
  }

  #carry(browser, port) {
    if (this.down) {
      browser.on('error', () => {}); // this class has closed it
      browser.resetAndDestroy();
      return;
    }
    const server = connect(port, '127.0.0.1');
    const link = { browser, server, cut: false };
    this.links.add(link);
    for (const [from, to] of [[browser, server], [server, browser]]) {
      from.pipe(to);
      from.on('error', () => to.destroy());
      from.on('close', () => {
        if (link.cut) return;
        to.destroySoon();
        this.links.delete(link);
      });
    }
  }

  /** Cuts all connections as on a machine that has lost its network. The browser notices at once. The server does not
   * notice; its data is no longer read. New connections fail. */
  cut() {
    this.down = true;
    for (const link of this.links) {
      link.cut = true;
      link.browser.unpipe();
      link.server.unpipe();
      link.server.pause();
      link.browser.resetAndDestroy();
    }
  }

  /** Allows new connections. Cut connections stay cut. */
  restore() {
    this.down = false;
  }

  close() {
    this.server.close();
    for (const link of this.links) {
      link.browser.destroy();
      link.server.destroy();
    }
  }
}
