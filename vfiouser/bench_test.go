package vfiouser_test

import (
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
)

type quiet struct{}

func (quiet) Info() vfiouser.Info {
	return vfiouser.Info{Reset: true, Regions: []vfiouser.Region{{Size: 4096, Read: true, Write: true}}}
}
func (quiet) ReadRegion(int, uint64, []byte) error  { return nil }
func (quiet) WriteRegion(int, uint64, []byte) error { return nil }
func (quiet) SetIRQ(int, int, int) error            { return nil }
func (quiet) DisableIRQs(int) error                 { return nil }
func (quiet) Reset() error                          { return nil }
func (quiet) Unmapping(uint64, uint64)              {}
func (quiet) MemoryChanged()                        {}
func (quiet) Disconnected()                         {}

func serveQuiet(b testing.TB) *vfiotest.Client {
	b.Helper()
	h := newHost(b)
	h.server = vfiouser.NewServer(quiet{}, h.Space, nil)
	l := h.connect()
	must(b, l.Conn().SetDeadline(time.Time{}))
	return l.Client
}

func BenchmarkDoorbell(b *testing.B) {
	c := serveQuiet(b)
	m := vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionWrite, Flags: vfiouser.FlagNoReply},
		Body: access(0, 0, 4, 1, 2, 3, 4)}
	b.ReportAllocs()
	for b.Loop() {
		must(b, c.Send(m))
	}
	must(b, c.Reset()) // its reply comes after the server has served all writes
}

func BenchmarkRead(b *testing.B) {
	c := serveQuiet(b)
	var v [4]byte
	b.ReportAllocs()
	for b.Loop() {
		must(b, c.Read(0, 0, v[:]))
	}
}

// BenchmarkMapUnmap maps and unmaps a range beside a thousand others.
func BenchmarkMapUnmap(b *testing.B) {
	c := serveQuiet(b)
	m := memory(b, 1<<22)
	for i := range uint64(1000) {
		must(b, c.MapRange(1<<32+i<<13, 4096, m.FD(), i<<12, true))
	}
	b.ReportAllocs()
	for b.Loop() {
		must(b, c.MapRange(1<<20, 4096, m.FD(), 0, true))
		must(b, c.Unmap(1<<20, 4096))
	}
}

// BenchmarkMostMaps maps the largest number of ranges, one a message, and unmaps all with one message.
func BenchmarkMostMaps(b *testing.B) {
	c := serveQuiet(b)
	m := memory(b, 1<<22)
	fds := []int{m.FD()}
	b.ReportAllocs()
	for b.Loop() {
		for i := range uint64(dma.MaxRegions) {
			must(b, c.Send(vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdDMAMap, Flags: vfiouser.FlagNoReply},
				Body: dmaMap(3, i%1024<<12, i<<13, 4096), FDs: fds}))
		}
		must(b, c.UnmapAll())
	}
}
