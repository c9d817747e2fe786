package broker

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The bodies of requests: values of fixed size. A body with a method check must pass it before its request is
// handled.
type (
	none struct{}

	socketIndex  uint32 // in Config.Connect
	fileIndex    uint32 // from the answer to opKeep or opDraft
	processIndex uint32 // from the answer to opOwn
	memoryIndex  uint32 // from the answer to opMemory

	flow struct {
		To         address
		Proto, TTL uint8
		DF         bool
		Local      uint16
		Buffer     uint32
	}

	answer struct {
		Listen, Sender address
		Buffer         uint32
	}

	// resolver is a DNS server's address, and whether to reach the server by UDP, or else by TCP.
	resolver struct {
		Address address
		UDP     bool
	}

	mappedFile struct {
		PID      int64
		Dev, Ino uint64
	}

	keptFile struct {
		Path         text
		AndDirectory bool
	}

	// draftFile names a file that opRename renames or opRemove removes.
	draftFile struct {
		Directory text
		Temporary text // the file's name now; empty: the file has none, and its descriptor comes with opDraft
		Name      text
	}

	processSignal struct {
		Process processIndex
		Signal  int32
	}

	grant struct {
		Memory memoryIndex
		Group  uint32
		Path   text
	}
)

func (k *keptFile) check() error {
	if path := k.Path.String(); !filepath.IsAbs(path) || strings.HasSuffix(path, "/") {
		return unix.EINVAL
	}
	return k.Path.check()
}

func (d *draftFile) check() error {
	if temp := d.Temporary.String(); !filepath.IsAbs(d.Directory.String()) || temp != "" && !isBase(temp) ||
		!isBase(d.Name.String()) {
		return unix.EINVAL
	}
	return errors.Join(d.Directory.check(), d.Temporary.check(), d.Name.check())
}

// isBase reports whether a name is one component of a path, other than "." and "..".
func isBase(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.Contains(name, "/")
}

func (p *processSignal) check() error {
	if sig := unix.Signal(p.Signal); sig != unix.SIGTERM && sig != unix.SIGKILL {
		return unix.EINVAL
	}
	return nil
}

func (g *grant) check() error { return g.Path.check() }

// text is a string of less than unix.PathMax bytes, padded with zero bytes.
type text [unix.PathMax]byte

// toText makes a text of s. The method check refuses the text if s has unix.PathMax bytes or more, or a zero byte
// before another byte.
func toText(s string) (t text) {
	copy(t[:], s)
	return t
}

func (t *text) String() string {
	s, _, _ := bytes.Cut(t[:], []byte{0})
	return string(s)
}

func (t *text) check() error {
	_, rest, ended := bytes.Cut(t[:], []byte{0})
	switch {
	case !ended:
		return unix.ENAMETOOLONG
	case len(bytes.Trim(rest, "\x00")) > 0:
		return unix.EINVAL
	}
	return nil
}
