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
	fileIndex    uint32 // in the answer to opKeep or opDraft
	processIndex uint32 // in the answer to opOwn
	memoryIndex  uint32 // in the answer to opMemory

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

	// resolver is a DNS server's address, and whether it is reached by UDP or by TCP.
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
		Temporary text // the file's name now; empty: it has none, and its descriptor comes with the request
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

// isBase reports whether a name is one component of a path, not "." or "..".
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

// text is a string, padded with zeros.
type text [unix.PathMax]byte

// toText makes a text, which check refuses if s is too long, or has a zero byte before another byte.
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
