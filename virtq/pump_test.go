package virtq

import (
	"fmt"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventFD stands for an eventfd: it keeps at most one notification.
type eventFD chan struct{}

func (b eventFD) notify() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// TestNoWakeupIsLost pumps chains between a driver and a device, each on a goroutine that sleeps when EnableCall or
// EnableKick has returned false. A lost wake-up is a deadlock.
//
// Invariant: virtq: No wake-up is lost.
func TestNoWakeupIsLost(t *testing.T) {
	total := 100_000
	if raceEnabled || testing.Short() {
		total = 10_000
	}
	for _, size := range []uint16{2, 4, 64, 256} {
		for _, event := range []bool{false, true} {
			for _, indirect := range []bool{false, true} {
				t.Run(fmt.Sprintf("size=%d/event=%v/indirect=%v", size, event, indirect), func(t *testing.T) {
					g := newGuest(t)
					dr, dev := g.ends(t, size, indirect, event)
					dr.ring.emulated = indirect // must work with the barrier and without
					pump(t, g, dr, dev, total)
				})
			}
		}
	}
}

func pump(t *testing.T, g *guest, dr *Driver, dev *Device, total int) {
	kick, call := make(eventFD, 1), make(eventFD, 1)
	stop := make(chan struct{}) // closed after an error: ends a goroutine that sleeps
	var once sync.Once
	fail := func(format string, args ...any) {
		t.Errorf(format, args...)
		once.Do(func() { close(stop) })
	}
	sleep := func(b eventFD) (awake bool) {
		select {
		case <-b:
			return true
		case <-stop:
			return false
		}
	}
	var wg sync.WaitGroup
	wg.Add(2)
	dma.Go(func() { // device: reads a number from Out, and writes it plus one to In
		defer wg.Done()
		var c Chain
		var b [4]byte
		copier := dma.NewCopier()
		for done := 0; done < total; {
			dev.DisableKick()
			for {
				tok := g.space.Enter()
				n := 0
				for ; n < 7; n++ {
					ok, err := dev.Peek(&c)
					if err != nil {
						fail("peek: %v", err)
					}
					if !ok {
						break
					}
					if _, err := copier.Read(b[:], c.Out); err != nil {
						fail("read: %v", err)
					}
					le.PutUint32(b[:], le.Uint32(b[:])+1)
					if _, err := copier.Write(c.In, b[:]); err != nil {
						fail("write: %v", err)
					}
					dev.Commit(c.Head, 4)
				}
				g.space.Leave(tok)
				if n == 0 {
					break
				}
				done += n
				if dev.Publish() {
					call.notify()
				}
			}
			if done < total && !dev.EnableKick() && !sleep(kick) {
				return
			}
		}
	})
	dma.Go(func() { // driver
		defer wg.Done()
		used := make([]Used, 5)
		slots := make([]uint32, 0, dr.Size()) // free slots for numbers
		for i := range dr.Size() {
			slots = append(slots, uint32(i))
		}
		out := func(i uint32) uint64 { return bufIOVA + 8*uint64(i) }
		in := func(i uint32) uint64 { return seamIOVA - 2 + 8*uint64(i) }
		sent, got, sum := 0, 0, 0
		for got < total {
			dr.DisableCall()
			for sent < total && len(slots) > 0 {
				i := slots[len(slots)-1]
				var b [4]byte
				le.PutUint32(b[:], uint32(sent))
				g.write(out(i), b[:])
				if err := dr.Add([]Buf{{out(i), 4}}, []Buf{{in(i), 4}}, i); err == ErrFull {
					break
				} else if err != nil {
					fail("add: %v", err)
					return
				}
				slots = slots[:len(slots)-1]
				sent++
				if sent%3 == 0 && dr.Publish() {
					kick.notify()
				}
			}
			if dr.Publish() {
				kick.notify()
			}
			n, err := dr.Poll(used)
			if err != nil {
				fail("poll: %v", err)
				return
			}
			for _, u := range used[:n] {
				var b [4]byte
				for k := range b {
					b[k] = g.buffer(in(u.Cookie)+uint64(k), 1)[0]
				}
				sum += int(le.Uint32(b[:])) - 1
				slots = append(slots, u.Cookie)
			}
			got += n
			if n == 0 && !dr.EnableCall() && !sleep(call) {
				return
			}
		}
		if want := total * (total - 1) / 2; sum != want {
			fail("numbers came back as a sum of %d, want %d", sum, want)
		}
	})
	wg.Wait()
	if dr.Free() != int(dr.Size()) {
		t.Errorf("%d of %d descriptors free at the end", dr.Free(), dr.Size())
	}
}

// TestNoWakeupIsLostWithAvailAtTwoModFour pumps chains in the same way; the driver is a plain, whose avail ring may lie
// at 2 mod 4.
//
// Invariant: virtq: No wake-up is lost.
func TestNoWakeupIsLostWithAvailAtTwoModFour(t *testing.T) {
	total := 200_000
	if raceEnabled || testing.Short() {
		total = 20_000
	}
	for _, size := range []uint16{1, 8} {
		for _, event := range []bool{false, true} {
			t.Run(fmt.Sprintf("size=%d/event=%v", size, event), func(t *testing.T) {
				g := newGuest(t)
				c := Config{Size: size, Desc: ringIOVA, Avail: ringIOVA + 0x1002, Used: ringIOVA + 0x2000, EventIdx: event}
				dr := newPlain(t, g, c)
				dev, err := NewDevice(g.space, c)
				testkit.OK(t, err)
				defer dev.Close()
				kick, call := make(eventFD, 1), make(eventFD, 1)
				var wg sync.WaitGroup
				wg.Add(1)
				dma.Go(func() {
					defer wg.Done()
					var chain Chain
					for done := 0; done < total; {
						ok := false
						g.inside(func() { ok, err = dev.Peek(&chain) })
						if err != nil {
							t.Error(err)
							return
						}
						if !ok {
							if !dev.EnableKick() {
								<-kick
							}
							continue
						}
						dev.Commit(chain.Head, 0)
						done++
						if dev.Publish() {
							call.notify()
						}
					}
				})
				for sent, got := 0, 0; got < total; {
					if n := min(dr.free(), total-sent); n > 0 {
						sent += n
						if dr.add(n) {
							kick.notify()
						}
					}
					n := dr.poll()
					got += n
					if n == 0 && !dr.enableCall() {
						<-call
					}
				}
				wg.Wait()
			})
		}
	}
}
