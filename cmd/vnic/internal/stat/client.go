package stat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/trusted"
)

// ErrNone says that no vnic is there to be asked.
var ErrNone = errors.New("no vnic of this user is running")

// maxSnapshot bounds what a client reads: 64 ports of 128 queue pairs are 4 MB.
const maxSnapshot = 64 << 20

// Find asks every vnic of this user for a snapshot, the one first that was started first. One that does not
// answer is left out.
func Find(ctx context.Context) ([]*Snapshot, error) {
	var found []*Snapshot
	err := each(func(d *os.File, pid int, name string) error {
		if s, err := read(ctx, d, name); err == nil {
			found = append(found, s)
		}
		return ctx.Err()
	})
	slices.SortFunc(found, func(a, b *Snapshot) int { return a.began().Compare(b.began()) })
	if err == nil && len(found) == 0 {
		err = errNone("")
	}
	return found, err
}

// began is when the process began.
func (s *Snapshot) began() time.Time {
	return s.Time.Add(-time.Duration(s.Uptime * float64(time.Second)))
}

// Read asks one vnic. ErrNone says that it is not there, or not any more.
func Read(ctx context.Context, pid int) (snap *Snapshot, err error) {
	var failed error
	err = each(func(d *os.File, p int, name string) error {
		if p == pid && snap == nil {
			snap, failed = read(ctx, d, name)
		}
		return ctx.Err()
	})
	switch {
	case snap != nil:
		return snap, nil
	case err != nil:
		return nil, err
	case failed != nil && !errors.Is(failed, ErrNone):
		return nil, fmt.Errorf("vnic %d: %w", pid, failed)
	}
	return nil, errNone(fmt.Sprintf(" as process %d", pid))
}

// errNone says where no vnic was found, and where none could be.
func errNone(who string) error {
	var places []string
	for _, path := range candidates() {
		d, err := openDir(path, false)
		if err == nil {
			_ = d.Close()
		}
		if errors.Is(err, trusted.Err) {
			path = err.Error()
		}
		places = append(places, path)
	}
	return fmt.Errorf("%w%s: looked in %s", ErrNone, who, strings.Join(places, ", "))
}

// each calls f for the sockets that there are.
func each(f func(d *os.File, pid int, name string) error) error {
	for _, path := range candidates() {
		d, err := openDir(path, false)
		if err != nil {
			continue // none, or not to be trusted
		}
		for pid, name := range sockets(d) {
			if err = f(d, pid, name); err != nil {
				break
			}
		}
		_ = d.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// exchange sends a line, "" for a snapshot, and gives what comes back.
func exchange(ctx context.Context, d *os.File, name, line string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.LocalServer.Here())
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", within(d, name))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()
	if _, err = io.WriteString(c, line); err == nil {
		_ = c.(*net.UnixConn).CloseWrite() // an error: it has answered and hung up
	}
	b, err := io.ReadAll(io.LimitReader(c, maxSnapshot))
	if err != nil {
		return nil, err
	}
	if len(b) == 0 { // closed without a word: it ends, or has too many clients
		return nil, fmt.Errorf("%w: it does not answer", ErrNone)
	}
	return b, nil
}

func read(ctx context.Context, d *os.File, name string) (*Snapshot, error) {
	b, err := exchange(ctx, d, name, "")
	if err != nil {
		return nil, err
	}
	s := new(Snapshot)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("what it says cannot be read: %w", err)
	}
	if s.Schema != 1 {
		return nil, fmt.Errorf("it is of another version: its counters are of schema %d, not 1", s.Schema)
	}
	return s, nil
}
