// Command nbdclient reads or writes an export of an NBD server by package block/nbd, over ordinary sockets
// (devmem/plain), with ordinary memory in place of a GPU's.
//
//	nbdclient pattern [FLAG...]   reads the export, which must have nbdkit's pattern: 8-byte offsets, big-endian
//	nbdclient read [FLAG...]      reads the export
//	nbdclient write [FLAG...]     fills the export with pseudo-random bytes of --seed
//
// At the end it prints the export's properties, counters, and the SHA-256 of its memory for the export's data, in
// which a block that it could not read holds bytes 0xa5. It counts operations that fail; without --errors it then
// exits with status 1. It checks that the MiB before and the MiB after the data have not changed. With --pause it
// repeats the job until an error or a signal, and prints and checks none of these.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"syscall"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/block/nbd"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
)

// Sizes in bytes: the GPU's memory has a guard, room for the export's data, a guard, and a pool for received data.
// At first each of its bytes is poison.
const (
	guard  = 1 << 20
	pool   = 4 << 20
	poison = 0xa5
)

type options struct {
	server, export string
	bs             uint64
	depth          int
	seed           uint64
	copied, errors bool
	readOnly       bool
	size           uint64
	timeout        time.Duration
	pause          bool
}

func main() {
	var o options
	f := flag.NewFlagSet("nbdclient", flag.ExitOnError)
	f.StringVar(&o.server, "server", "", "its `address`")
	f.StringVar(&o.export, "export", "", "the export's name")
	f.Uint64Var(&o.bs, "bs", 128<<10, "bytes of an operation")
	f.IntVar(&o.depth, "depth", 8, "operations at a time")
	f.Uint64Var(&o.seed, "seed", 1, "of what is written, and of the order")
	f.Uint64Var(&o.size, "size", 64<<20, "room for an export, in bytes")
	f.BoolVar(&o.copied, "copy", false, "all through host memory")
	f.BoolVar(&o.errors, "errors", false, "the server may refuse blocks")
	f.BoolVar(&o.readOnly, "read-only", false, "no connection for writes")
	f.DurationVar(&o.timeout, "timeout", 0, "without progress")
	f.BoolVar(&o.pause, "pause", false,
		"prints a line when it has opened the export, and then reads it again and again")
	if len(os.Args) < 2 {
		f.Usage()
		os.Exit(2)
	}
	_ = f.Parse(os.Args[2:]) // flag.ExitOnError: Parse exits on an error
	if err := run(os.Args[1], o); err != nil {
		fmt.Fprintln(os.Stderr, "nbdclient:", err)
		os.Exit(1)
	}
}

func run(job string, o options) (err error) {
	addr, err := netip.ParseAddrPort(o.server)
	if err != nil {
		return err
	}
	gpu, err := plain.NewGPU(guard + o.size + guard + pool)
	if err != nil {
		return err
	}
	dev, err := plain.New(plain.Options{GPUs: []*plain.GPU{gpu}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close(), gpu.Close()) }()
	data, err := dev.Register(0, guard, o.size)
	if err != nil {
		return err
	}
	landing, err := dev.Register(0, guard+o.size+guard, pool)
	if err != nil {
		return err
	}
	for n := copy(gpu.Bytes(), bytes.Repeat([]byte{poison}, guard)); n < len(gpu.Bytes()); n *= 2 {
		copy(gpu.Bytes()[n:], gpu.Bytes()[:n])
	}
	memory := plain.NewMemory(gpu)
	d, err := nbd.Open(context.Background(), nbd.Config{Device: dev, Memory: memory, Server: addr, Export: o.export,
		Queue: 1, Pool: landing, Data: data, Depth: o.depth, ReadOnly: o.readOnly, Copy: o.copied, Timeout: o.timeout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	info := d.Info()
	if info.Size > o.size {
		return fmt.Errorf("%s has %d bytes: more than -size", info.Name, info.Size)
	}
	if o.pause {
		fmt.Println("opened")
	}
	if job == "write" && info.ReadOnly {
		return fmt.Errorf("%s: %w", info.Name, syscall.EROFS)
	}
	j := work{o: o, d: d, info: info, data: gpu.Bytes()[guard : guard+info.Size], write: job == "write"}
	if j.write {
		fill(j.data, o.seed)
	}
	for first := true; first || o.pause; first = false {
		if err := j.do(); err != nil {
			return err
		}
	}
	for _, b := range [][]byte{gpu.Bytes()[:guard], gpu.Bytes()[guard+info.Size:][:guard]} {
		if !bytes.Equal(b, bytes.Repeat([]byte{poison}, guard)) {
			return errors.New("memory beside the data was written to")
		}
	}
	if job == "pattern" {
		j.pattern()
	}
	return j.report(dev.Stats(), memory.Stats())
}

func fill(b []byte, seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(b)
}

// work is a job on all blocks of an export; a block has o.bs bytes, the last one may have fewer.
type work struct {
	o       options
	d       *nbd.Device
	info    block.Info
	data    []byte
	write   bool
	refused map[string]int
	bad     []block.Op // operations that failed in the last round
	wrong   int        // number of wrong bytes; pattern sets it
	took    time.Duration
}

// do reads or writes each block once, unless it returns an error, in an order that o.seed determines.
func (j *work) do() error {
	n := int((j.info.Size + j.o.bs - 1) / j.o.bs)
	order := rand.New(rand.NewPCG(j.o.seed, 1)).Perm(n)
	j.refused, j.bad = map[string]int{}, nil
	start := time.Now()
	done := 0
	err := j.d.Do(context.Background(), j.o.depth, func() (block.Op, bool) {
		if len(order) == 0 {
			return block.Op{}, false
		}
		off := uint64(order[0]) * j.o.bs
		order = order[1:]
		return block.Op{Write: j.write, Off: off, Len: min(j.o.bs, j.info.Size-off), Mem: off}, true
	}, func(x block.Done) {
		done++
		if x.Err == nil {
			return
		}
		j.bad = append(j.bad, x.Op)
		what := "not sent"
		if e := (*block.OpError)(nil); errors.As(x.Err, &e) {
			what = e.Status
		}
		j.refused[what]++
	})
	j.took = time.Since(start)
	if err == nil && done != n {
		err = fmt.Errorf("%d of %d operations are done", done, n)
	}
	return err
}

// pattern counts in wrong the bytes of data that are not nbdkit's pattern, or, in blocks whose operation failed, not
// poison.
func (j *work) pattern() {
	want := make([]byte, (len(j.data)+7)/8*8)
	for off := 0; off < len(want); off += 8 {
		binary.BigEndian.PutUint64(want[off:], uint64(off))
	}
	for _, o := range j.bad {
		copy(want[o.Off:o.Off+o.Len], bytes.Repeat([]byte{poison}, int(o.Len)))
	}
	for i := range j.data {
		if j.data[i] != want[i] {
			j.wrong++
		}
	}
}

func (j *work) report(dev devmem.Stats, memory devmem.MemoryStats) error {
	s := j.d.Stats()
	ops := (j.info.Size + j.o.bs - 1) / j.o.bs
	fmt.Printf("%s; %d bytes, blocks of %d, up to %d; coherent %v\n", j.info.Name, j.info.Size, j.info.BlockSize,
		j.info.MaxTransfer, j.d.Coherent())
	fmt.Printf("ops=%d read=%d written=%d host=%d tx_device=%d gathered=%d looked=%d looks=%d replies=%d MB/s=%.0f\n",
		ops, s.Read, s.Written, s.HostBytes, dev.TxDevmemBytes, memory.Gathered, s.Looked, s.Looks, s.Messages,
		float64(s.Read+s.Written)/1e6/j.took.Seconds())
	fmt.Printf("refused=%d %v wrong=%d\n", len(j.bad), j.refused, j.wrong)
	fmt.Printf("sha256 %x\n", sha256.Sum256(j.data))
	switch {
	case j.wrong > 0:
		return fmt.Errorf("%d bytes are wrong", j.wrong)
	case len(j.bad) > 0 && !j.o.errors:
		return fmt.Errorf("%d operations were refused: %v", len(j.bad), j.refused)
	case !j.o.copied && (s.HostBytes != 0 || memory.Gathered != s.Read || dev.TxDevmemBytes != s.Written):
		return errors.New("payload went through host memory")
	case j.o.copied && (memory.Gathered != 0 || dev.TxDevmemBytes != 0):
		return errors.New("payload went past host memory")
	}
	return nil
}
