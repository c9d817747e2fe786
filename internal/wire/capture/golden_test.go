package capture

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// The captures run in synctest bubbles, so that their timestamps are always the same.
func TestGolden(t *testing.T) {
	got := make(map[string]string)
	for name, capture := range map[string]func(t *testing.T, out io.Writer){
		"no-port":  goldenNoPort,
		"headers":  func(t *testing.T, out io.Writer) { goldenTraffic(t, out, Options{Comment: "a test"}) },
		"payload":  func(t *testing.T, out io.Writer) { goldenTraffic(t, out, Options{Payload: 33}) },
		"dropped":  goldenDropped,
		"impaired": goldenImpaired,
		"missed":   goldenMissed,
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			capture(t, &out)
			var err error
			if got[name], err = dumpBlocks(out.Bytes()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	golden.Check(t, "testdata/golden", got)
}

func step() {
	synctest.Wait()
	time.Sleep(time.Millisecond + 1)
}

func goldenNoPort(t *testing.T, out io.Writer) {
	c := testkit.Must(New(out, Options{Comment: "nothing"}))(t)
	step()
	testkit.OK(t, c.Close())
}

// goldenTraffic sends packets of many kinds between three ports.
func goldenTraffic(t *testing.T, out io.Writer, o Options) {
	a, b := pair(t)
	c := attached(t, out, o, a, b)
	send := func(from *host, ps ...*wire.Packet) {
		from.send(ps...)
		step()
	}
	send(a, a.tcp(b.mac, nil, 0, 0, 0, 1))
	send(a, a.tcp(b.mac, a.gpu, 0x1000, 1, 0, 1))
	send(a, a.tcp(b.mac, a.gpu, 0x1f00, 1000, 0, 2))                   // from two pieces of GPU memory
	send(a, a.tcp(b.mac, a.ram, 0x2000, 10000, 1448, 1000))            // a GSO packet, from host memory
	send(b, b.tcp(a.mac, b.gpu, gpuSize/2-10, 100, 0, 5))              // from and to GPU memory, partly outside of buffers
	send(a, a.arp())                                                   // broadcast
	send(a, a.tcp(wire.MAC{3, 0, 0, 0, 0, 1}, a.ram, 0, 7, 0, 2))      // to a group
	send(a, a.tcp(wire.MAC{2, 0, 0, 0, 0, 0x77}, a.ram, 0, 8, 0, 3))   // to an unknown address
	send(a, a.tcp(b.mac, dma.NewBuffer(a.mem, dma.Wire), 5, 9, 0, 42)) // from a buffer of the wire

	third := newHost(t, a.sw, 2, wire.LinkOptions{})
	hello(third)
	step() // the writer puts the other ports' records into the file before the third port's interfaces
	c.Attach(third.link)
	step()
	send(third, third.tcp(b.mac, third.gpu, 0x3000, 5, 0, 9), third.tcp(a.mac, third.gpu, 0x4000, 5, 0, 10)) // a batch

	gpu, ram := b.gpu, b.ram
	for _, place := range []wire.Placement{
		{Queue: 0},
		{Queue: 7, Split: true, HeaderLen: 54, Payload: []dma.Segment{gpu.Segment(0x8000, 4096), gpu.Segment(0x2000, 904)}},
		{Queue: 7, Unsplit: true, Payload: []dma.Segment{ram.Segment(64, 5000)}},
		{Queue: 1, Split: true, HeaderLen: 54, Bounced: true, Payload: []dma.Segment{gpu.Segment(0x10000, 5000)}},
		{Queue: 2, Payload: []dma.Segment{ram.Segment(0, 100), ram.Segment(4096, 100), gpu.Segment(0, 4800)}},
		{Queue: -1},
		{Queue: -1, Payload: []dma.Segment{ram.Segment(0, 5000)}},
		{Queue: 3, Split: true, HeaderLen: 54, Payload: pieces(gpu, 25, 200)},
	} {
		b.place = func(*wire.Packet) (wire.Verdict, wire.Placement) { return wire.Verdict{Kind: wire.Taken}, place }
		send(a, a.tcp(b.mac, a.gpu, 0x100, 5000, 1000, 77))
	}
	testkit.OK(t, c.Close())
}

func pieces(r *dma.Region, n int, size uint32) (segs []dma.Segment) {
	for i := range n {
		segs = append(segs, r.Segment(uint64(i)*4096, size))
	}
	return segs
}

// goldenDropped captures a packet for every drop reason, at the sender and at the receiver.
func goldenDropped(t *testing.T, out io.Writer) {
	a, b := pair(t)
	c := attached(t, out, Options{}, a, b)
	a.send(a.tcp(a.mac, a.gpu, 0, 100, 0, 0))
	step()
	p := a.tcp(b.mac, a.gpu, 0, 100, 0, 0)
	b.busy = true
	a.send(p) // the port stays busy, and the packet is not in the file yet
	b.busy = false
	a.send(p)
	step()
	for r := range wire.DropReason(wire.NumDropReasons) {
		a.link.GaveUp(a.w, a.tcp(b.mac, a.gpu, 0, 100, 0, uint32(r)), r)
		step()
	}
	for r := range wire.DropReason(wire.NumDropReasons) {
		place := wire.Placement{Queue: 5}
		if r%2 == 1 {
			place = wire.Nowhere
		}
		b.place = func(*wire.Packet) (wire.Verdict, wire.Placement) { return wire.Drop(r), place }
		a.send(a.tcp(b.mac, a.ram, 0, 100, 0, uint32(r)))
		step()
	}
	testkit.OK(t, c.Close())
}

func goldenImpaired(t *testing.T, out io.Writer) {
	sw := newSwitch(t)
	a := newHost(t, sw, 0, wire.LinkOptions{Up: wire.Impairment{Seed: 4, Loss: 0.3, Reorder: 0.2}})
	b := newHost(t, sw, 1, wire.LinkOptions{Down: wire.Impairment{Seed: 5, Loss: 0.1}})
	b.send(b.arp())
	c := attached(t, out, Options{}, a, b)
	for i := range 12 {
		a.send(a.tcp(b.mac, a.gpu, 0, 500, 0, uint32(i*500)))
		step()
		time.Sleep(time.Second) // held segments arrive
	}
	for i := range 6 {
		a.send(a.tcp(b.mac, a.gpu, 0, 40*1000, 1000, uint32(i*40*1000)))
		step()
		time.Sleep(time.Second)
	}
	testkit.OK(t, c.Close())
}

// gate is a writer whose writes block until open is closed.
type gate struct {
	open chan struct{}
	io.Writer
}

func (g *gate) Write(b []byte) (int, error) {
	<-g.open
	return g.Writer.Write(b)
}

// goldenMissed sends packets for which the ring has no room.
func goldenMissed(t *testing.T, out io.Writer) {
	a, b := pair(t)
	g := &gate{make(chan struct{}), out}
	c := attached(t, g, Options{Records: 4}, a)
	step()
	for round := range uint32(2) { // a packet's drop count has only the misses since the last one
		for i := range uint32(7) {
			a.send(a.tcp(b.mac, a.gpu, 0, 10, 0, 100*round+i))
			b.send(b.tcp(a.mac, b.gpu, 0, 10, 0, 100*round+i))
		}
		close(g.open)
		step()
		g.open = make(chan struct{})
		a.send(a.tcp(b.mac, a.gpu, 0, 10, 0, 100*round+50))
		step() // the writer blocks on the file again
	}
	close(g.open)
	step()
	testkit.OK(t, c.Close())
}

// blocks are block types (draft-ietf-opsawg-pcapng, 4): name, and length of the fixed fields behind the block's length.
var blocks = map[uint32]struct {
	name  string
	fixed int
}{
	0x0a0d0d0a: {"section header", 16},
	1:          {"interface description", 8},
	5:          {"interface statistics", 12},
	6:          {"enhanced packet", 20},
}

// dumpBlocks prints every byte of a file: a block's type, length and fixed fields on one line, a packet's data on the
// next ones, and each option on a line of its own.
func dumpBlocks(file []byte) (string, error) {
	le := binary.LittleEndian
	var b strings.Builder
	for i := 0; len(file) > 0; i++ {
		if len(file) < 12 {
			return "", fmt.Errorf("block %d: %d bytes are left", i, len(file))
		}
		kind, n := le.Uint32(file), le.Uint32(file[4:])
		if n < 12 || n%4 != 0 || int(n) > len(file) || le.Uint32(file[n-4:]) != n {
			return "", fmt.Errorf("block %d, type %#x: length %d", i, kind, n)
		}
		about, ok := blocks[kind]
		if !ok || int(n) < 12+about.fixed {
			return "", fmt.Errorf("block %d: type %#x of %d bytes", i, kind, n)
		}
		fmt.Fprintf(&b, "# block %d: %s\n%x %x", i, about.name, file[:4], file[4:8])
		body := file[8 : n-4]
		for _, word := range words(body[:about.fixed]) {
			b.WriteString(" " + word)
		}
		b.WriteString("\n")
		options := body[about.fixed:]
		if kind == 6 {
			captured := le.Uint32(body[12:])
			padded := (captured + 3) &^ 3
			if int(padded) > len(options) {
				return "", fmt.Errorf("block %d: %d bytes of packet", i, captured)
			}
			dumpData(&b, options[:padded])
			options = options[padded:]
		}
		if err := dumpOptions(&b, options, about.name); err != nil {
			return "", fmt.Errorf("block %d: %w", i, err)
		}
		fmt.Fprintf(&b, "%x\n\n", file[n-4:n])
		file = file[n:]
	}
	return b.String(), nil
}

func words(b []byte) (all []string) {
	for len(b) > 4 {
		all, b = append(all, hex.EncodeToString(b[:4])), b[4:]
	}
	return append(all, hex.EncodeToString(b))
}

func dumpData(b *strings.Builder, data []byte) {
	for len(data) > 0 {
		k := min(32, len(data))
		fmt.Fprintf(b, "    %s\n", strings.Join(words(data[:k]), " "))
		data = data[k:]
	}
}

// dumpOptions prints a block's options. It prints runtime.GOARCH in the section header as GOARCH.
func dumpOptions(b *strings.Builder, options []byte, owner string) error {
	for len(options) > 0 {
		code, n := binary.LittleEndian.Uint16(options), int(binary.LittleEndian.Uint16(options[2:]))
		padded := (n + 3) &^ 3
		if 4+padded > len(options) {
			return fmt.Errorf("option %d of %d bytes: %d are left", code, n, len(options))
		}
		value := options[4 : 4+n]
		text := hex.EncodeToString(value)
		switch {
		case owner == "section header" && code == 2 && string(value) == runtime.GOARCH:
			text = "GOARCH"
		case isText(value):
			text = fmt.Sprintf("%q", value)
		}
		pad := strings.TrimSuffix(" "+hex.EncodeToString(options[4+n:4+padded]), " ")
		fmt.Fprintf(b, "  option %d, %d: %s%s\n", code, n, text, pad)
		options = options[4+padded:]
		if code == 0 && len(options) > 0 {
			return fmt.Errorf("%d bytes behind the end of options", len(options))
		}
	}
	return nil
}

func isText(b []byte) bool {
	return len(b) > 0 && !bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' || r > '~' })
}

// TestDumpShowsEveryByte tests that changing one byte of a file changes its dump, or makes the dump fail.
func TestDumpShowsEveryByte(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) { goldenMissed(t, &out) })
	file := out.Bytes()
	want := testkit.Must(dumpBlocks(file))(t)
	for i := range file {
		file[i] ^= 0x41
		if got, err := dumpBlocks(file); err == nil && got == want {
			t.Errorf("byte %d is in no dump", i)
		}
		file[i] ^= 0x41
	}
}
