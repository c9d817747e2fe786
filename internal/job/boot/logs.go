package boot

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/outfile"
)

type log struct {
	*os.File
	note   func(format string, args ...any)
	failed sync.Once
}

// Write returns each error of the file; for the first it also calls note.
func (l *log) Write(b []byte) (int, error) {
	n, err := l.File.Write(b)
	if err != nil {
		l.failed.Do(func() { l.note("--log-dir: nothing more of this console is kept: %v", err) })
	}
	return n, err
}

func (l *runner) openLogs() error {
	dir := l.opt.LogDir
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("--log-dir: %w: give a directory that you may write", err)
	}
	for i := range l.opt.Guests {
		f, err := outfile.Create(filepath.Join(dir, "console-"+guestnet.HostName(i)+".log"))
		if err != nil {
			return fmt.Errorf("--log-dir: %w", err)
		}
		l.logs = append(l.logs, &log{File: f, note: l.opt.Note})
		l.undo.Add(f.Close)
	}
	return nil
}

func (o *Options) checkGDB() error {
	if o.GDB == 0 {
		return nil
	}
	for i := range o.Guests {
		s, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(o.GDB+i))
		switch {
		case errors.Is(err, unix.EADDRINUSE):
			return fmt.Errorf("--gdb: port %d of %s is in use: give another", o.GDB+i, guestnet.HostName(i))
		case err != nil:
			return fmt.Errorf("--gdb: %w", err)
		}
		_ = s.Close()
	}
	return nil
}
