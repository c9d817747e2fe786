package guests

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

func serveFile(l net.Listener, file []byte) {
	s := http.Server{ReadHeaderTimeout: time.Minute, Handler: handler(file)}
	_ = s.Serve(l)
	_ = s.Close()
}

func handler(file []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "file", time.Unix(1e9, 0), bytes.NewReader(file))
	})
}

// nbdServer is a server of the NBD protocol (its proto.md) with one export: fixed newstyle, NBD_OPT_GO, simple
// replies.
type nbdServer struct {
	mu    sync.Mutex
	store []byte
}

func (s *nbdServer) content() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.store)
}

func (s *nbdServer) serve(l net.Listener) {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		work.Go(func() {
			defer c.Close()
			if s.shake(c) {
				for s.answer(c) {
				}
			}
		})
	}
}

const exportName = "disk"

func (s *nbdServer) shake(c net.Conn) bool {
	be := binary.BigEndian
	hello := be.AppendUint64([]byte("NBDMAGIC"), 0x49484156454f5054) // IHAVEOPT
	hello = be.AppendUint16(hello, 1|2)                              // fixed newstyle, no zeroes
	if _, err := c.Write(hello); err != nil {
		return false
	}
	var b [4 + 16]byte // the client's flags, and the head of its option
	if _, err := io.ReadFull(c, b[:]); err != nil || be.Uint32(b[12:]) != 7 || be.Uint32(b[16:]) > 4096 {
		return false
	}
	data := make([]byte, be.Uint32(b[16:]))
	if _, err := io.ReadFull(c, data); err != nil || len(data) < 4+len(exportName)+2 ||
		be.Uint32(data) != uint32(len(exportName)) || string(data[4:4+len(exportName)]) != exportName {
		return false
	}
	reply := func(typ uint32, data []byte) []byte {
		b := be.AppendUint64(nil, 0x3e889045565a9)
		b = be.AppendUint32(b, 7)
		b = be.AppendUint32(b, typ)
		return append(be.AppendUint32(b, uint32(len(data))), data...)
	}
	info := be.AppendUint16(nil, 0) // NBD_INFO_EXPORT
	info = be.AppendUint64(info, uint64(len(s.store)))
	info = be.AppendUint16(info, 1|1<<2|1<<8) // flags, NBD_CMD_FLUSH, several connections
	_, err := c.Write(append(reply(3, info), reply(1, nil)...))
	return err == nil
}

// answer reads and answers one request; false: the connection must end.
func (s *nbdServer) answer(c net.Conn) bool {
	be := binary.BigEndian
	var b [28]byte
	if _, err := io.ReadFull(c, b[:]); err != nil || be.Uint32(b[:]) != 0x25609513 {
		return false
	}
	typ, off, n := be.Uint16(b[6:]), be.Uint64(b[16:]), be.Uint32(b[24:])
	if size := uint64(len(s.store)); off > size || uint64(n) > size-off {
		return false
	}
	reply := be.AppendUint32(nil, 0x67446698)
	reply = append(be.AppendUint32(reply, 0), b[8:16]...)
	switch typ {
	case 0:
		s.mu.Lock()
		reply = append(reply, s.store[off:off+uint64(n)]...)
		s.mu.Unlock()
	case 1:
		data := make([]byte, n)
		if _, err := io.ReadFull(c, data); err != nil {
			return false
		}
		s.mu.Lock()
		copy(s.store[off:], data)
		s.mu.Unlock()
	case 3:
	default:
		return false
	}
	_, err := c.Write(reply)
	return err == nil
}
