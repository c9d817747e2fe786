package gpulab

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/gpudriver"
	"vnic.dev/vnic/internal/gpudriver/testnic"
	"vnic.dev/vnic/internal/mailbox"
	"vnic.dev/vnic/internal/testkit"
)

// pagingNIC is the part of a NIC that uses pages of a guest's programs on demand.
type pagingNIC struct {
	t       *testing.T
	g       *guest
	ram     []byte // the guest's, from guest-physical 0 on
	vram    []byte
	control testnic.Control
	box     *mailbox.Mailbox
	mode    uint64
	unfreed []int // in the mode Dead: slots of requests that the driver has given up
	log     []mailbox.Request
	logged  uint64 // requests since the last Log, also ones for which the log has no room

	// the fields below are valid while region is not 0
	region  uint32
	table   []entry
	counted []uint32
	asked   *testnic.Request
	counts  [testnic.Counts]uint64
}

// entry is the NIC's table entry for a page.
type entry struct {
	word  []byte // the memory to write to; nil: none
	vram  bool
	taken uint32 // generation of the last invalidation of the page
	known bool   // there was an invalidation
}

// serve starts a NIC for a guest, which runs until the test ends.
func serve(t *testing.T, g *guest) {
	t.Helper()
	testkit.Equal(t, "files of RAM", len(g.Machine.Physical()), 1)
	f := g.Machine.Physical()[0].File
	size := testkit.Must(f.Stat())(t).Size()
	ram := testkit.Must(unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	pin := testkit.Must(g.gpu.Region().Pin(0, gpuMemory))(t)
	n := &pagingNIC{t: t, g: g, ram: ram, vram: pin.Bytes(), control: testnic.Control(pin.Bytes()[:page])}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			default:
			}
			if !n.step() {
				time.Sleep(20 * time.Microsecond) // a guest that is emulated needs the CPU
			}
		}
	}()
	t.Cleanup(func() {
		close(end)
		<-done
		if n.box != nil {
			n.box.Close()
		}
		pin.Close()
		testkit.OK(t, unix.Munmap(ram))
	})
}

// step does the work that is due, and reports whether there was any.
func (n *pagingNIC) step() (busy bool) {
	commanded := n.control.Commanded() // read before Poll: the log must have the requests before the command
	if n.box != nil {
		n.box.Poll(func(r mailbox.Request) {
			busy = true
			n.takeBack(r)
		})
	}
	if commanded {
		n.command()
		busy = true
	}
	if n.region != 0 {
		n.count()
		busy = true
	}
	return busy
}

// takeBack logs the driver's request to release pages (an invalidation) if the log has room. It frees a request that
// the driver has given up, except in the mode Dead. Of others it drops the pages from the table, and acknowledges
// them, except in the modes Dead and Silent.
func (n *pagingNIC) takeBack(r mailbox.Request) {
	if n.logged++; len(n.log) < testnic.MaxLog {
		n.log = append(n.log, r)
	}
	switch {
	case n.mode == testnic.Dead:
		if r.GivenUp {
			n.unfreed = append(n.unfreed, r.Slot)
		}
		return
	case r.GivenUp:
		n.box.Free(r.Slot)
		return
	case n.mode == testnic.Silent:
		return
	}
	var late []int
	var old []entry
	if r.Region == n.region && n.region != 0 {
		n.counts[testnic.Acks]++
		for i := range n.table {
			e := &n.table[i]
			if uint64(i) < r.First || uint64(i)-r.First >= r.Pages {
				continue
			}
			if n.mode == testnic.Sabotages && e.word != nil && e.vram {
				late, old = append(late, i), append(old, *e)
			}
			*e = entry{taken: r.Generation, known: true}
		}
	}
	// In the mode Sabotages the NIC writes to the old places in the GPU once more after its answer.
	var values []uint32
	for _, e := range old {
		values = append(values, dma.LoadWord(e.word))
	}
	if !n.box.Done(r.Slot) {
		n.t.Errorf("%+v: the guest has not waited", r)
	}
	for i, e := range old {
		for start := time.Now(); time.Since(start) < time.Millisecond; {
			runtime.Gosched()
		}
		dma.StoreWord(e.word, values[i]+1)
		n.counted[late[i]]++
	}
}

// place returns 8 bytes of memory at an address from the driver; nil: there are none of this kind, or not at addr.
func (n *pagingNIC) place(kind gpudriver.Kind, addr uint64) []byte {
	mem := n.ram
	switch kind {
	case gpudriver.RAM:
	case gpudriver.VRAM:
		mem = n.vram
	default:
		return nil
	}
	if addr%8 != 0 || addr > uint64(len(mem))-8 {
		return nil
	}
	return mem[addr : addr+8]
}

func (n *pagingNIC) command() {
	c, r := n.control.GetCommand(), testnic.Result{}
	if err := n.do(&c, &r); err != nil {
		n.t.Error(err)
		r.Failed = true
	}
	n.control.Result(&r)
}

func (n *pagingNIC) do(c *testnic.Command, r *testnic.Result) (err error) {
	switch c.Op {
	case testnic.Attach:
		if n.box != nil {
			n.box.Close()
		}
		n.box, err = mailbox.Open(n.g.gpu.GPU, c.Args[0])
	case testnic.SetMode:
		n.mode = c.Args[0]
		for n.mode != testnic.Dead && len(n.unfreed) > 0 {
			n.box.Free(n.unfreed[0])
			n.unfreed = n.unfreed[1:]
		}
	case testnic.Read, testnic.Write:
		p := n.place(gpudriver.Kind(c.Args[0]), c.Args[1])
		if p == nil {
			return fmt.Errorf("place %#x of kind %d", c.Args[1], c.Args[0])
		}
		if c.Op == testnic.Write {
			binary.NativeEndian.PutUint64(p, c.Args[2])
		}
		r.Words[0] = binary.NativeEndian.Uint64(p)
	case testnic.Log:
		r.Words[0] = n.logged
		for i, q := range n.log {
			flags := uint64(0)
			if q.GivenUp {
				flags = 1
			}
			copy(r.Words[1+i*testnic.Fields:], []uint64{uint64(q.Region), q.First, q.Pages, uint64(q.Generation),
				uint64(q.Reason), flags})
		}
		n.log, n.logged = n.log[:0], 0
	case testnic.Start:
		n.region = uint32(c.Args[0])
		n.table, n.counted = make([]entry, c.Args[1]), make([]uint32, c.Args[1])
		n.counts, n.asked = [testnic.Counts]uint64{}, nil
	case testnic.Stop:
		copy(r.Words[:], n.counts[:])
		for i, x := range n.counted {
			r.Words[testnic.Counts+i] = uint64(x)
		}
		n.region = 0
	case testnic.Lost:
		r.Words[0] = uint64(n.box.Lost())
	default:
		return fmt.Errorf("command %d", c.Op)
	}
	return err
}

// count takes the answer to the NIC's last request, if there is one, increments the word in each page that the NIC may
// write, and requests missing pages if no request waits for an answer.
func (n *pagingNIC) count() {
	if n.asked != nil && !n.control.Requested() {
		if r := n.control.GetResponse(); !n.hold(r) {
			n.learn(r)
		}
	}
	missing := -1
	for i := range n.table {
		p := n.table[i].word
		if p == nil {
			if missing < 0 {
				missing = i
			}
			continue
		}
		// This is not atomic: the guest's program must not write this word.
		dma.StoreWord(p, dma.LoadWord(p)+1)
		n.counted[i]++
		n.counts[testnic.Written]++
	}
	if missing >= 0 && n.asked == nil {
		n.asked = &testnic.Request{Region: n.region, First: uint64(missing),
			N: uint32(min(testnic.MaxRequest, len(n.table)-missing))}
		n.control.Request(*n.asked)
		n.counts[testnic.Requests]++
	}
}

// hold reports whether the NIC does not use an answer yet: in the mode Believes, if the answer has a place, until one
// of its pages has been invalidated after it.
func (n *pagingNIC) hold(r testnic.Response) bool {
	if n.mode != testnic.Believes || r.Places == (testnic.Response{}).Places {
		return false
	}
	return !slices.ContainsFunc(n.table[n.asked.First:][:n.asked.N], func(e entry) bool { return e.after(r) })
}

func (e entry) after(r testnic.Response) bool { return e.known && int32(e.taken-r.Generation) > 0 }

// learn enters the pages of an answer (a Response) into the table, unless the answer is a failure. It leaves out
// pages invalidated after the answer, but in the mode Believes enters them if they are in the GPU's memory.
func (n *pagingNIC) learn(r testnic.Response) {
	q := *n.asked
	n.asked = nil
	if r.Failed {
		return
	}
	for i := range q.N {
		e := &n.table[q.First+uint64(i)]
		kind, addr := gpudriver.Kind(r.Places[i]&3), r.Places[i]&^(page-1)
		if e.after(r) {
			n.counts[testnic.Stale]++
			if n.mode != testnic.Believes || kind != gpudriver.VRAM {
				continue
			}
		}
		e.word, e.vram = n.place(kind, addr), kind == gpudriver.VRAM
	}
}
