package rxepeer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

const greeting = "hello 1 7.2.12 rxe0 02:76:6e:69:00:01 1024"

// program returns a Peer, and plays its program: for each pair of the script it expects the first string as request,
// and answers with the second. It closes the connection after the last one, or after another request.
func program(t *testing.T, script ...[2]string) *Peer {
	t.Helper()
	ours, theirs := net.Pipe()
	script = append([][2]string{{"hello", greeting}}, script...)
	ended := make(chan error, 1)
	go func() {
		in := bufio.NewScanner(theirs)
		for _, s := range script {
			if !in.Scan() || in.Text() != s[0] {
				ended <- fmt.Errorf("request %q, want %q", in.Text(), s[0])
				break
			}
			if _, err := io.WriteString(theirs, s[1]+"\n"); err != nil {
				break
			}
		}
		_ = theirs.Close()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = ours.Close()
		testkit.NoError(t, <-ended)
	})
	return testkit.Must(New(ours))(t)
}

func TestRequestsAndAnswers(t *testing.T) {
	p := program(t,
		[2]string{"qp 1 4 16777215", "qp 17 16777215 00000000000000000000ffff0a766e01"},
		[2]string{"connect 1 18 7 fd766e69000000000000000000000002 1024 14 7 0 12", "ok"},
		[2]string{"mr 2 4096 lwr", "mr 1 2 18446744073709551615"},
		[2]string{"post 1 5 write_imm 2 1 4095 4096 77 4294967295", "ok"},
		[2]string{"poll 1 1000", "none"},
		[2]string{"poll 1 1000", "wc 5 0 129 4095 4294967295 success"},
		[2]string{"poll 1 1000", "wc 5 10 -1 0 -1 remote access error"},
		[2]string{"check 2 0 4096 3 9", "check 1 4095"},
		[2]string{"async 0", "async 3 17 local access violation work queue error"},
		[2]string{"counters", "counters sent_pkts=7 rcvd_pkts=8"},
		[2]string{"dereg 2", "error a: b: 22 Invalid argument"},
		[2]string{"quit", "ok"})
	testkit.Equal(t, "what it says of itself", fmt.Sprintln(p.Kernel, p.Device, p.MAC, p.PortMTU),
		strings.TrimPrefix(greeting, "hello 1 ")+"\n")
	e, err := p.QP(1, IPv4, 0xffffff)
	testkit.OK(t, err)
	testkit.Equal(t, "the end", e, End{17, 0xffffff, netip.MustParseAddr("10.118.110.1")})
	testkit.OK(t, p.Connect(1, End{18, 7, netip.MustParseAddr("fd76:6e69::2")}, Path{RNRRetry: NoRetry}))
	testkit.Equal(t, "the region", testkit.Must(p.MR(2, 4096, All))(t), MR{1, 2, 1<<64 - 1})
	testkit.OK(t, p.Post(1, Request{ID: 5, Op: WriteImm, M: 2, Off: 1, Len: 4095, VA: 4096, RKey: 77, Imm: 1<<32 - 1}))
	for _, want := range []Completion{{},
		{ID: 5, Text: "success", Recv: true, Len: 4095, HasImm: true, Imm: 1<<32 - 1},
		{ID: 5, Status: RemoteAccess, Text: "remote access error"}} {
		c, ok, err := p.Poll(1, time.Second)
		testkit.OK(t, err)
		testkit.Equal(t, "the completion", c, want)
		testkit.Equal(t, "whether there is one", ok, want != Completion{})
	}
	testkit.Equal(t, "what is wrong", testkit.Must(p.Check(2, 0, 4096, 3, 9))(t), Wrong{1, 4095})
	ev, ok, err := p.Async(0)
	testkit.OK(t, err)
	testkit.Equal(t, "the event", fmt.Sprint(ev, ok), "{3 17 local access violation work queue error} true")
	testkit.Equal(t, "a counter", testkit.Must(p.Counters())(t)["rcvd_pkts"], 8)
	err = p.Dereg(2)
	testkit.ErrorIs(t, err, syscall.EINVAL)
	testkit.ErrorSays(t, err, "rdma-peer: a: b: invalid argument")
	testkit.OK(t, p.Close())
}

// Invariant: rxepeer: An answer that is none to the request is an error, whatever it is.
func TestBadAnswers(t *testing.T) {
	for _, s := range []string{"", "ok", "none", "qp", "qp 1", "qp 1 2", "qp 1 2 3", "qp -1 2 00", "qp 1 16777216 " +
		"00000000000000000000ffff0a766e01", "qp 1 2 00000000000000000000ffff0a766e0", "mr 1 2 3", "error", "error x",
		"error x: y", "error x: 0 no"} {
		p := program(t, [2]string{"qp 0 4 1", s}, [2]string{"quit", "ok"})
		if e, err := p.QP(0, IPv4, 1); !errors.Is(err, ErrAnswer) {
			t.Errorf("%q: %+v, %v", s, e, err)
		}
		testkit.OK(t, p.Close())
	}
}

// Invariant: rxepeer: After an answer that did not come, no later one is taken for it.
func TestNoAnswer(t *testing.T) {
	p := program(t)
	err := p.Drop(0)
	testkit.ErrorIs(t, err, io.ErrClosedPipe)
	testkit.Equal(t, "the next error", p.Fail(0), err)
	testkit.OK(t, p.Close())
}
