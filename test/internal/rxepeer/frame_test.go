package rxepeer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/guestexec"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire/capture"
	"vnic.dev/vnic/stack"
)

var write = flag.Bool("frames", false, "write testdata/frames.txt anew, of what rxe sends in this run")

// framesFile has frames that two rxe devices sent each other.
var framesFile = filepath.Join("testdata", "frames.txt")

// Invariant: rxepeer: The ICRC of each frame that rxe sends is as calculated here; with a changed
// bit in the IP header, the payload or the ICRC it is not.
func TestFramesOfRXE(t *testing.T) {
	b := testkit.Must(os.ReadFile(framesFile))(t)
	seen := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		raw := testkit.Must(hex.DecodeString(digits))(t)
		f := testkit.Must(ParseFrame(raw))(t)
		testkit.Equal(t, "opcode", f.Name(), name)
		testkit.Equal(t, name+": ICRC", f.ICRC, f.Sum)
		seen[name] = true
		for _, off := range []int{ethLen + 4, len(raw) - icrcLen - 1, len(raw) - 1} {
			bad := slices.Clone(raw)
			bad[off] ^= 0x10
			if f, err := ParseFrame(bad); err == nil && f.ICRC == f.Sum {
				t.Errorf("%s: its ICRC is right with byte %d changed", name, off)
			}
		}
	}
	for _, name := range opcodes {
		if !seen[name] {
			t.Errorf("%s has no %q", framesFile, name)
		}
	}
}

func TestParseFrameTakesAnything(t *testing.T) {
	b := testkit.Must(os.ReadFile(framesFile))(t)
	_, digits, _ := strings.Cut(strings.TrimSpace(string(b[bytes.Index(b, []byte("WRITE only: ")):])), ": ")
	digits, _, _ = strings.Cut(digits, "\n")
	raw := testkit.Must(hex.DecodeString(digits))(t)
	for n := range raw {
		testkit.ErrorIs(t, testkit.Err(ParseFrame(raw[:n])), ErrNotRoCE, "%d bytes of %d", n, len(raw))
	}
}

func (x *pair) captured(p *lab.Port, f func()) (list [][]byte) {
	x.Helper()
	var out bytes.Buffer
	c := testkit.Must(capture.New(&out, capture.Options{Payload: capture.MaxPayload}))(x)
	link := p.NIC().Link()
	c.Attach(link)
	f()
	link.SetTap(nil)
	testkit.OK(x, c.Close())
	testkit.Equal(x, "frames that were missed", c.Stats().Missed, 0)
	r := testkit.Must(pcapgo.NewNgReader(&out, pcapgo.NgReaderOptions{}))(x)
	for n := c.Stats().Packets; n > 0; n-- {
		b, _, err := r.ReadPacketData()
		testkit.OK(x, err)
		if _, err := ParseFrame(b); err == nil {
			list = append(list, slices.Clone(b))
		}
	}
	return list
}

// frames makes the guests send frames with each of opcodes, and checks their ICRC. With the flag -frames it writes them
// to framesFile.
func (x *pair) frames() {
	const q = 3
	seen := map[string]int{}
	var text strings.Builder
	note := func(list [][]byte) {
		for _, b := range list {
			f := testkit.Must(ParseFrame(b))(x)
			testkit.Equal(x, f.Name()+": ICRC", f.ICRC, f.Sum)
			seen[f.Name()]++
			fmt.Fprintf(&text, "%s: %x\n", f.Name(), b)
		}
	}
	text.WriteString("# Frames that two of Linux's rxe sent each other. Made by: go test -run TestTwoGuests -frames\n")
	for _, family := range []int{IPv4, IPv6} {
		x.connect(q, family, Path{MTU: 256})
		for _, op := range ops {
			for _, n := range []uint64{600, 7} {
				note(x.captured(x.lab.Port(0), func() {
					testkit.Equal(x, "what is wrong", x.move(moved{op: op, q: q, n: n, flip: -1}), Wrong{0, -1})
				}))
			}
		}
		for _, c := range []struct {
			r    Request
			want Status
		}{{Request{Op: Send, Len: 9}, RNRRetriesExceeded}, {Request{Op: Write, Len: 9}, RemoteAccess}} {
			x.connect(q, family, Path{MTU: 256, RNRRetry: NoRetry})
			note(x.captured(x.lab.Port(0), func() {
				testkit.OK(x, x.sides[0].Post(q, c.r))
				testkit.Equal(x, "status", x.completion(x.sides[0], q).Status, c.want)
			}))
		}
	}
	for _, name := range opcodes {
		if seen[name] == 0 {
			x.Errorf("no frame is %q: %v", name, seen)
		}
	}
	x.Logf("ICRC: %v", seen)
	if *write {
		testkit.OK(x, os.WriteFile(framesFile, []byte(text.String()), 0o644))
	}
}

// process makes a guest's rxe write to a guest in this process, which answers ARP and neighbor discovery, but not the
// RDMA packets, and checks these packets.
func (x *pair) process() {
	const q = 4
	p := x.lab.Port(2)
	n := testkit.Must(p.InProcess(driver.Options{QueuePairs: 1}))(x)
	s, err := stack.New(n, n.Control(), stack.Options{Addresses: []netip.Prefix{p.Addr4, p.Addr6}, MTU: p.MTU})
	if err != nil {
		testkit.NoError(x, n.Close())
		x.Fatal(err)
	}
	x.Cleanup(func() { testkit.NoError(x, s.Close()) })
	x.overTCP(s)
	a := x.sides[0]
	for _, addr := range []netip.Addr{p.Addr4.Addr(), p.Addr6.Addr()} {
		family := IPv4
		if addr.Is6() {
			family = IPv6
		}
		end := End{QPN: 0xabcdef, PSN: 0x123456, Addr: addr}
		from := testkit.Must(a.QP(q, family, 0x654321))(x)
		testkit.OK(x, a.Connect(q, end, Path{MTU: 256, Retry: 1, Timeout: 12}))
		came := x.captured(p, func() {
			testkit.OK(x, a.Post(q, Request{Op: Write, Len: 1, VA: 0x1122334455667788, RKey: 0x99aabbcc}))
			testkit.Equal(x, "status", x.completion(a, q).Status, RetriesExceeded)
		})
		if len(came) == 0 {
			x.Error("nothing came")
		}
		for _, b := range came {
			f := testkit.Must(ParseFrame(b))(x)
			testkit.Equal(x, "what came", fmt.Sprint(f.Src, f.Dst, f.Name(), f.DestQP, f.PSN, f.Pad),
				fmt.Sprint(from.Addr, addr, "WRITE only", end.QPN, from.PSN, 3))
		}
	}
}

func (x *pair) overTCP(s *stack.Stack) {
	const port = "7000"
	ctx, stop := context.WithTimeout(x.Context(), testkit.Patience)
	defer stop()
	from, to := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		status, err := guestexec.Run(ctx, x.sides[0].Guest.Agent(), guestexec.Command{Path: "/bin/rdma-peer",
			Args: []string{"rdma-peer", "-l", port}, Stdout: to})
		if err == nil && status.Exit() != 0 {
			err = fmt.Errorf("status %d", status.Exit())
		}
		_ = to.CloseWithError(io.ErrUnexpectedEOF)
		ended <- err
	}()
	line, err := bufio.NewReader(from).ReadString('\n')
	if err != nil {
		x.Fatal(errors.Join(err, <-ended))
	}
	testkit.Equal(x, "what it says", line, "listening\n")
	addr := testkit.Must(netip.ParseAddrPort(x.lab.Port(0).Addr4.Addr().String() + ":" + port))(x)
	conn := testkit.Must(s.Dial(ctx, netip.AddrPort{}, addr))(x)
	p := testkit.Must(New(conn))(x)
	testkit.Equal(x, "the kernel", p.Kernel, x.sides[0].Kernel)
	testkit.OK(x, p.Close())
	testkit.OK(x, <-ended)
}
