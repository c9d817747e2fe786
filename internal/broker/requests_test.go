package broker

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/testkit"
)

func raw(k *Client, op uint32, body []byte, fds ...int) error {
	ctx, cancel := soon()
	defer cancel()
	r, err := k.ask(ctx, func(id uint32) []byte { return append(peer.Append(nil, requestHeader{op, id}), body...) }, fds)
	scm.Close(r.fd)
	return err
}

// Invariant: sandbox: The broker refuses a request whose body, descriptors or time are not as its row says.
func TestRequestsOfAnotherFormAreRefused(t *testing.T) {
	testkit.LeavesNothing(t)
	file := int(testkit.Memfd(t, 1).Fd())
	for op, e := range table {
		t.Run(e.name, func(t *testing.T) {
			k := both(t, Config{Mode: On})
			refuses := func(what string, want error, size int, fds ...int) {
				t.Helper()
				testkit.ErrorIs(t, raw(k, uint32(op), make([]byte, size), fds...), want, what)
				testkit.Must(opRefused.quick(k, none{}))(t)
			}
			var fds []int
			if e.descriptor == fdMust {
				refuses("no descriptor", unix.EBADF, e.size)
				fds = []int{file}
			}
			if e.descriptor == fdNone {
				refuses("a descriptor", unix.EBADF, e.size, file)
			}
			refuses("two descriptors", unix.EBADF, e.size, file, file)
			refuses("a longer body", unix.EINVAL, e.size+1, fds...)
			refuses("a body longer than any", unix.EINVAL, 1<<16, fds...)
			if e.size > 0 {
				refuses("a shorter body", unix.EINVAL, e.size-1, fds...)
				refuses("no body", unix.EINVAL, 0, fds...)
			}
			testkit.Must(opSeal.quick(k, none{}))(t)
			if e.when == beforeSeal {
				refuses("after the seal", unix.EPERM, e.size, fds...)
			}
		})
	}
}

func TestBodiesAreChecked(t *testing.T) {
	k := both(t, Config{Mode: On})
	keep := func(path string) error {
		_, err := opKeep.quick(k, keptFile{Path: toText(path)})
		return err
	}
	draft := func(dir, temp, name string) error {
		_, err := opDraft.quick(k, draftFile{toText(dir), toText(temp), toText(name)})
		return err
	}
	_, stop := opSignal.quick(k, processSignal{Signal: int32(unix.SIGSTOP)})
	longest := peer.Append(nil, draftFile{toText("/"), toText("no such file"), toText("z")})
	testkit.ErrorIs(t, raw(k, opDraft.op, longest), unix.ENOENT)
	for what, c := range map[string]struct{ err, want error }{
		"a byte behind the longest":  {raw(k, opDraft.op, append(longest, 0)), unix.EINVAL},
		"a bool of 2":                {raw(k, opKeep.op, append(peer.Append(nil, toText("/x")), 2)), unix.EINVAL},
		"a relative path":            {keep("x"), unix.EINVAL},
		"a directory":                {keep("/x/"), unix.EINVAL},
		"a zero in a path":           {keep("/x\x00y"), unix.EINVAL},
		"a path that is too long":    {keep("/" + strings.Repeat("x", unix.PathMax)), unix.ENAMETOOLONG},
		"a relative directory":       {draft("x", "y", "z"), unix.EINVAL},
		"a temporary name elsewhere": {draft("/", "../y", "z"), unix.EINVAL},
		"no name":                    {draft("/", "y", ""), unix.EINVAL},
		"another signal":             {stop, unix.EINVAL},
	} {
		testkit.ErrorIs(t, c.err, c.want, what)
	}
}

// The broker answers a request with any operation and body, and the next request after it.
func FuzzRequests(f *testing.F) {
	for op, e := range table {
		f.Add(append(peer.Append(nil, requestHeader{Op: uint32(op)}), make([]byte, e.size)...))
	}
	to := toAddress(netip.MustParseAddrPort("127.0.0.1:80"))
	f.Add(opDial.message(0, to))
	f.Add(opFlow.message(0, flow{To: to, Proto: 17, TTL: 9, DF: true, Local: 80, Buffer: 1 << 15}))
	f.Add(opAnswer.message(0, answer{to, to, 1 << 16}))
	f.Add(opResolver.message(0, resolver{to, true}))
	f.Add(opSharing.message(0, mappedFile{1, 2, 3}))
	f.Add(opSignal.message(0, processSignal{0, int32(unix.SIGTERM)}))
	f.Add(opKeep.message(0, keptFile{toText("/x/y"), true}))
	f.Add(opDraft.message(0, draftFile{toText("/x"), toText(".y"), toText("y")}))
	f.Add(opGive.message(0, grant{0, 1, toText("/x/y")}))
	k := both(f, Config{Mode: On})
	testkit.Must(opSeal.quick(k, none{}))(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, body, ok := header[requestHeader](b)
		if !ok || len(b) > 1<<16 {
			return
		}
		if h.Op < uint32(len(table)) {
			if _, err := table[h.Op].decode(body); err == nil && len(body) != table[h.Op].size {
				t.Errorf("%s with a body of %d bytes", table[h.Op].name, len(body))
			}
		}
		if err := raw(k, h.Op, body); errors.Is(err, ErrGone) || errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		testkit.Must(opRefused.quick(k, none{}))(t)
	})
}
