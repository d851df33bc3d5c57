package api

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"golang.org/x/sys/unix"
)

// A gateway on the supervisor's machine can hand over a client's socket, so that no byte passes the gateway:
//
//  1. The gateway asks for it with HeaderHandOver in the handshake of a websocket on the supervisor's unix socket.
//  2. The supervisor confirms it with the same header in its 101, and sends nothing more. An older one does not.
//  3. The gateway answers the client with the 101, and sends the socket with SendSocket.
//  4. The supervisor receives it with ReceiveSocket, and serves the websocket on it.
//
// From then on the unix connection carries nothing. Its end ends the websocket, whichever side has closed it. A side
// may close its writing half alone: the other one then delivers what is left, and closes the rest. The gateway keeps
// the socket open and closes it for both, so the supervisor's close does not end the client's connection.

// HeaderHandOver asks a supervisor to take over the client's socket, and confirms it. Its value is HandOverVersion.
const (
	HeaderHandOver  = "Ekg-Hand-Over"
	HandOverVersion = "1"
)

// HeaderWatched says that the gateway ends the connection of a client whose host is gone, if it keeps the socket. An
// older gateway sends no such header. Then the supervisor ends the connection of a client that answers no pings.
const HeaderWatched = "Ekg-Watched"

// ConfirmsHandOver reports whether a supervisor takes over the socket of a client whose request it has received. The
// request must have come on a unix socket.
func ConfirmsHandOver(r *http.Request) bool {
	_, local := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr)
	return local && r.Header.Get(HeaderHandOver) == HandOverVersion
}

const (
	// earlyHead has the number of early bytes, in big endian. The socket comes with it.
	earlyHead = 8
	// maxEarly bounds the early bytes, which the receiver holds in memory. A gateway's lobby keeps less.
	maxEarly = 32 << 20
	// descriptorsMost is how many descriptors are looked at, so that those which should not be there are closed.
	descriptorsMost = 8
)

// SendSocket sends the descriptor of a client's socket, and the bytes that were read from it already. The caller keeps
// the descriptor. Deadlines of the connection hold.
func SendSocket(to *net.UnixConn, socket int, early []byte) error {
	message := append(binary.BigEndian.AppendUint64(nil, uint64(len(early))), early...)
	n, _, err := to.WriteMsgUnix(message, unix.UnixRights(socket), nil)
	if err == nil && n < len(message) { // an empty write would fail if the receiver has closed its side since
		_, err = to.Write(message[n:])
	}
	return err
}

// ReceiveSocket receives what SendSocket has sent. The socket belongs to the caller. After an error nothing is left
// open but the connection. Deadlines of the connection hold.
func ReceiveSocket(from *net.UnixConn) (client *net.TCPConn, early []byte, err error) {
	var head [earlyHead]byte
	control := make([]byte, unix.CmsgSpace(4*descriptorsMost))
	n, controls, flags, _, err := from.ReadMsgUnix(head[:], control)
	if err != nil {
		return nil, nil, err
	}
	sockets, err := descriptors(control[:controls])
	defer closeAll(sockets) // the connection below has a descriptor of its own
	switch {
	case err != nil:
		return nil, nil, err
	case n == 0:
		return nil, nil, io.EOF
	case len(sockets) != 1 || flags&unix.MSG_CTRUNC != 0:
		return nil, nil, fmt.Errorf("%d descriptors were received, not one", len(sockets))
	}
	if _, err := io.ReadFull(from, head[n:]); err != nil {
		return nil, nil, err
	}
	size := binary.BigEndian.Uint64(head[:])
	if size > maxEarly {
		return nil, nil, fmt.Errorf("%d early bytes are more than %d", size, maxEarly)
	}
	early = make([]byte, size)
	if _, err := io.ReadFull(from, early); err != nil {
		return nil, nil, err
	}
	conn, err := net.FileConn(sockets[0])
	if err != nil {
		return nil, nil, fmt.Errorf("the descriptor is not a socket: %w", err)
	}
	client, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("the descriptor is a %T, not a TCP connection", conn), conn.Close())
	}
	return client, early, nil
}

// descriptors returns the files of a message's control data. They are the caller's, also after an error.
func descriptors(control []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nothing was written
	}
}
