package clienttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/block/nbd"
	"vnic.dev/vnic/block/nvmetcp"
	"vnic.dev/vnic/collective"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/kernel"
	"vnic.dev/vnic/internal/devmemtest"
	"vnic.dev/vnic/loader"
)

// Report is the result of a job.
type Report struct {
	// Job "memory": the number of passed cases, and the results of the others.
	Passed int                 `json:"passed,omitempty"`
	Cases  []devmemtest.Result `json:"cases,omitempty"`

	Received  uint64 `json:"received,omitempty"`   // bytes of payload
	Sent      uint64 `json:"sent,omitempty"`       // bytes of payload
	HostBytes uint64 `json:"host_bytes,omitempty"` // bytes received in host memory, with headers (job plain: without)
	SHA256    string `json:"sha256,omitempty"`     // of a file, a device as first read, or a ring's sums
	Written   string `json:"written,omitempty"`    // SHA-256 of the bytes written to a block device

	Memory devmem.MemoryStats `json:"memory"`
}

type bench struct {
	gpu    *gpu
	dev    *kernel.Device
	memory devmem.Memory
	queue  int

	data, pool, scratch devmem.Buffer
}

// newBench allocates the GPU memory, opens the interface, registers buffers, and removes the last receive queue from
// RSS until close. After an error, it has closed the bench that it returns.
func newBench(name string, node int) (b *bench, err error) {
	b = &bench{}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.gpu, err = newGPU(node); err != nil {
		return b, err
	}
	if b.dev, err = kernel.Open(kernel.Options{Interface: name, Buffers: b.gpu}); err != nil {
		return b, err
	}
	if b.queue = b.dev.Queues() - 1; b.queue < 1 {
		return b, fmt.Errorf("%s has %d receive queues: 2 are needed", name, b.queue+1)
	}
	if err = b.dev.SetRSS(b.queue); err != nil {
		return b, err
	}
	b.memory = b.gpu.memory()
	for _, p := range []struct {
		to        *devmem.Buffer
		off, size uint64
	}{{&b.data, dataOff, dataSize}, {&b.pool, poolOff, poolSize}, {&b.scratch, scratchOff, scratchSize}} {
		if *p.to, err = b.dev.Register(0, p.off, p.size); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (b *bench) close() (err error) {
	if b.dev != nil {
		err = b.dev.Close()
	}
	if b.gpu != nil {
		err = errors.Join(err, b.gpu.Close())
	}
	return err
}

func (b *bench) bytes(n uint64) []byte { return b.gpu.mapped[dataOff : dataOff+n : dataOff+n] }

func digest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

type other struct{ devmem.Buffer }

func (other) GPU() int { return 1 }

// cases runs the test suite of devmem.Memory; failed cases are in r.Cases, and not an error. The suite checks contents
// through another mapping of the memory (UDMABuf.Bytes).
func (b *bench) cases(ctx context.Context, r *Report) error {
	buffers := [2]devmem.Buffer{b.data, nil}
	var err error
	if buffers[1], err = b.dev.Register(0, poolOff, devmemtest.MemorySize); err != nil {
		return err
	}
	for _, c := range devmemtest.MemoryCases() {
		res := devmemtest.CheckMemory(ctx, c, func(devmemtest.T) *devmemtest.MemoryWorld {
			w := &devmemtest.MemoryWorld{Memory: b.gpu.memory(), Buffers: buffers, Other: other{b.scratch}}
			for i, x := range buffers {
				w.Contents[i] = devmemtest.Bytes(b.gpu.Bytes()[x.Offset():][:devmemtest.MemorySize])
			}
			return w
		})
		if res.Failed || res.Skipped {
			r.Cases = append(r.Cases, res)
		} else {
			r.Passed++
		}
	}
	return nil
}

func (b *bench) load(ctx context.Context, url string, r *Report) (err error) {
	o, err := loader.Open(ctx, url, loader.Config{Device: b.dev, Memory: b.memory, Queue: b.queue, Pool: b.pool,
		Connections: 2, RangeSize: 256 << 10})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if err := o.Fetch(ctx, b.data, loader.Pieces(loader.Piece{Len: o.Size()}),
		func(loader.Piece) error { return nil }); err != nil {
		return err
	}
	s := o.Stats()
	r.Received, r.HostBytes, r.SHA256 = s.Payload, s.HostBytes, digest(b.bytes(o.Size()))
	return nil
}

// plain reads a file, up to its first dataSize bytes, over an ordinary socket into host memory, for comparison with
// load.
func (b *bench) plain(ctx context.Context, url string, r *Report) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(io.LimitReader(resp.Body, dataSize))
	r.Received, r.HostBytes, r.SHA256 = uint64(len(all)), uint64(len(all)), digest(all)
	return err
}

func (b *bench) nbd(ctx context.Context, server netip.AddrPort, export string, r *Report) error {
	d, err := nbd.Open(ctx, nbd.Config{Device: b.dev, Memory: b.memory, Server: server, Export: export, Queue: b.queue,
		Pool: b.pool, Data: b.data, Depth: blockDepth})
	if err != nil {
		return err
	}
	return b.blocks(ctx, d, r)
}

func (b *bench) nvme(ctx context.Context, target netip.AddrPort, nqn string, r *Report) error {
	d, err := nvmetcp.Open(ctx, nvmetcp.Config{Device: b.dev, Memory: b.memory, Target: target, NQN: nqn, Queue: b.queue,
		Pool: b.pool, Data: b.data, Depth: blockDepth})
	if err != nil {
		return err
	}
	return b.blocks(ctx, d, r)
}

const (
	blockDepth = 8
	blockSize  = 64 << 10
	writeSeed  = 7
)

func (b *bench) blocks(ctx context.Context, d block.Device, r *Report) (err error) {
	defer func() { err = errors.Join(err, d.Close()) }()
	size := d.Info().Size
	if size == 0 || size > dataSize/2 {
		return fmt.Errorf("%s has %d bytes, up to %d are used", d.Info().Name, size, dataSize/2)
	}
	if err := all(ctx, d, false, 0); err != nil {
		return err
	}
	r.SHA256 = digest(b.bytes(size))
	want := make([]byte, size)
	fill(want, writeSeed)
	if err := b.memory.Put(ctx, b.data, size, want); err != nil {
		return err
	}
	if err := all(ctx, d, true, size); err != nil {
		return err
	}
	r.Written = digest(want)
	if err := all(ctx, d, false, 0); err != nil {
		return err
	}
	if !bytes.Equal(b.bytes(size), want) {
		return errors.New("what is read is not what was written")
	}
	s := d.Stats()
	r.Received, r.Sent, r.HostBytes = s.Read, s.Written, s.HostBytes
	return nil
}

// all reads or writes a whole device, in operations of up to blockSize bytes, begun with the device's last bytes.
// Offset x of the device is at offset mem+x of the buffer.
func all(ctx context.Context, d block.Device, write bool, mem uint64) error {
	left := d.Info().Size
	var errs []error
	err := d.Do(ctx, blockDepth, func() (block.Op, bool) {
		n := min(left, blockSize)
		left -= n
		return block.Op{Write: write, Off: left, Len: n, Mem: mem + left}, n > 0
	}, func(x block.Done) { errs = append(errs, x.Err) })
	return errors.Join(append(errs, err)...)
}

// fill fills b from a seed by a linear congruential generator (Knuth, MMIX), 8 bytes at a time; up to 7 last bytes stay
// as they are.
func fill(b []byte, seed uint64) {
	for off := 0; off+8 <= len(b); off += 8 {
		seed = seed*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(b[off:], seed)
	}
}

// Ring has the settings of one rank (participant) of an all-reduce.
type Ring struct {
	Rank, Ranks  int
	Listen, Next netip.AddrPort
	Count        int // of integers
}

// Element returns the k-th integer of a rank before the reduction.
func (r Ring) Element(rank, k int) uint32 { return uint32(k*7919 + rank*104729) }

// Sum returns the k-th integer after the reduction.
func (r Ring) Sum(k int) (sum uint32) {
	for rank := range r.Ranks {
		sum += r.Element(rank, k)
	}
	return sum
}

func (b *bench) ring(ctx context.Context, c Ring, r *Report) (err error) {
	if c.Count < 0 || c.Count > dataSize/4 {
		return fmt.Errorf("%d integers: up to %d", c.Count, dataSize/4)
	}
	ring, err := collective.Join(ctx, collective.Config{Rank: c.Rank, Ranks: c.Ranks, Device: b.dev, Memory: b.memory,
		Queue: b.queue, Pool: b.pool, Scratch: b.scratch, Listen: c.Listen, Next: c.Next})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ring.Close()) }()
	data := b.bytes(uint64(4 * c.Count))
	for k := range c.Count {
		binary.LittleEndian.PutUint32(data[4*k:], c.Element(c.Rank, k))
	}
	if err := ring.AllReduce(ctx, devmem.Int32, b.data, 0, uint64(c.Count)); err != nil {
		return err
	}
	sums := slices.Clone(data)
	for k := range c.Count {
		if got := binary.LittleEndian.Uint32(sums[4*k:]); got != c.Sum(k) {
			return fmt.Errorf("sum %d is %d, not %d", k, got, c.Sum(k))
		}
	}
	s := ring.Stats()
	r.Received, r.Sent, r.HostBytes, r.SHA256 = s.Received, s.Sent, s.Linear, digest(sums)
	return nil
}
