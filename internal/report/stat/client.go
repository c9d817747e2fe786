package stat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/jsonlines"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/trusted"
	"vnic.dev/vnic/internal/version"
)

// ErrNone means that this user's vnic with the process id given to Read or Change is not running, or closes the
// connection without an answer. Find returns it if it gets neither a snapshot nor the error for another version of the
// protocol.
var ErrNone = errors.New("no vnic of this user is running")

// A client sends one request, opSnapshot or opSet, and the server answers it (package jsonlines).
const (
	protocol   = 2          // version; a first message with another one, or none, is refused
	opSnapshot = "snapshot" // the answer is a Snapshot, or an error
	opSet      = "set"      // args: a text for lab.ParseChange

	maxRequest  = 4 << 10  // bytes of a request's line
	maxSnapshot = 64 << 20 // bytes of an answer's line; 64 ports of 128 queue pairs are about 4 MB without flows
)

// Find asks the vnics of this user for snapshots, and returns these, the longest running vnic's first. It leaves out
// a vnic whose request fails. If none is left, the error is the one for a vnic with another version of the protocol,
// or wraps ErrNone if there is no such vnic. If ctx ends, Find returns ctx's error and the snapshots so far.
func Find(ctx context.Context) ([]*Snapshot, error) {
	var found []*Snapshot
	var refused error
	for pid, path := range running() {
		s := new(Snapshot)
		if err := ask(ctx, path, pid, opSnapshot, nil, s); err == nil {
			found = append(found, s)
		} else if errors.As(err, new(version.Error)) {
			refused = err
		}
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
	}
	slices.SortFunc(found, func(a, b *Snapshot) int { return a.began().Compare(b.began()) })
	if len(found) == 0 {
		return nil, cmp.Or(refused, errNone(""))
	}
	return found, nil
}

func (s *Snapshot) began() time.Time {
	return s.Time.Add(-time.Duration(s.Uptime * float64(time.Second)))
}

// Read asks the vnic with process id pid for a snapshot. The error wraps ErrNone if that vnic is not running.
func Read(ctx context.Context, pid int) (*Snapshot, error) {
	snap := new(Snapshot)
	if err := askOne(ctx, pid, opSnapshot, nil, snap); err != nil {
		return nil, err
	}
	return snap, nil
}

// Change asks the vnic with process id pid to make a change of its lab. The error wraps ErrNone if that vnic is not
// running; another error may be the vnic's refusal.
func Change(ctx context.Context, pid int, what lab.Change) error {
	return askOne(ctx, pid, opSet, what.String(), nil)
}

func askOne(ctx context.Context, pid int, op string, args, out any) error {
	for p, path := range running() {
		if p != pid {
			continue
		}
		if err := ask(ctx, path, pid, op, args, out); !errors.Is(err, ErrNone) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errNone(fmt.Sprintf(" as process %d", pid))
}

// errNone returns an error that wraps ErrNone and lists the searched directories, and for a directory with a wrong
// owner or mode the reason why it was not used.
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

// running yields process ids and socket paths of vnics that may be running. A path is valid until the loop's
// next iteration.
func running() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		for _, dir := range candidates() {
			d, err := openDir(dir, false)
			if err != nil {
				continue
			}
			for pid, name := range sockets(d) {
				if !yield(pid, within(d, name)) {
					_ = d.Close()
					return
				}
			}
			_ = d.Close()
		}
	}
}

func ask(ctx context.Context, path string, pid int, op string, args, out any) error {
	ctx, cancel := context.WithTimeout(ctx, limits.LocalServer.Here())
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNone, err)
	}
	p := jsonlines.Protocol{Version: protocol, MaxLine: maxSnapshot, Who: fmt.Sprintf("process %d", pid),
		Fix: fmt.Sprintf("ask it with its own program, /proc/%d/exe", pid)}
	c := jsonlines.NewClient(conn.(*net.UnixConn), jsonlines.Options{Protocol: p, MaxRequest: maxRequest, Strict: true,
		Closed: func(err error) error {
			switch {
			case err == jsonlines.ErrNoMessage: // JSON without id, event and hello, from a vnic with another protocol
				return version.Ours(protocol).Check(version.Hello{}, p.Who, p.Fix)
			case errors.Is(err, jsonlines.ErrNoMessage), errors.Is(err, jsonlines.ErrTooLong):
				return fmt.Errorf("what it says cannot be read: %w", err)
			}
			return fmt.Errorf("%w: it does not answer", ErrNone) // for example, the server ends, or has maxClients
		}})
	err = c.Call(ctx, op, args, out)
	_ = c.Close()
	var refused version.Error
	var remote *jsonlines.RemoteError
	switch {
	case err == nil, errors.Is(err, ErrNone):
		return err
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &remote):
		return errors.New(remote.Text)
	}
	return fmt.Errorf("vnic %d: %w", pid, err)
}
