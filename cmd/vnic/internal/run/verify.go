package run

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/guest-images/transfer"
)

// view calls f with [off, off+n) of a guest's GPU memory, in pieces: of the GPU's, or of the window
// that a guest has of it.
func (e *end) view(ctx context.Context, off, n uint64, f func([]byte) error) error {
	if e.window == nil {
		return viewRegion(ctx, e.gpu.Region(), off, n, 1<<20, f)
	}
	for _, x := range e.window {
		if n == 0 {
			return nil
		}
		if off < x.Off || off-x.Off >= x.Size {
			continue
		}
		k := min(n, x.Size-(off-x.Off))
		if err := viewRegion(ctx, e.gpu.Region(), x.GPUOff+(off-x.Off), k, 1<<20, f); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	if n > 0 {
		return fmt.Errorf("guest %s: %d bytes at %#x are outside its window", e.name, n, off)
	}
	return nil
}

// viewRegion calls f with [off, off+n) of a region, in pieces of at most limit, until ctx ends.
func viewRegion(ctx context.Context, r *dma.Region, off, n uint64, limit int, each func([]byte) error) error {
	f := func(b []byte) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return each(b)
	}
	c := dma.NewCopier()
	errc := make(chan error, 1)
	dma.Go(func() {
		for n > 0 {
			k := min(n, 1<<30)
			if err := c.View(dma.Segment{Region: r, Off: off, Len: uint32(k)}, limit, f); err != nil {
				errc <- err
				return
			}
			off, n = off+k, n-k
		}
		errc <- nil
	})
	return <-errc
}

// poisoned makes sure that destination and pool hold nothing of any payload before a round: the
// digest cannot be that of an earlier one.
func (l *runner) poisoned(ctx context.Context, e *end, p transfer.Prepare) error {
	want := bytes.Repeat([]byte{byte(p.Seed)}, 1<<20)
	check := func(what string, off, n uint64) error {
		return e.view(ctx, off, n, func(b []byte) error {
			if !bytes.Equal(b, want[:len(b)]) {
				return fmt.Errorf("%s of guest %s is not poisoned as ordered", what, e.name)
			}
			return nil
		})
	}
	if err := check("destination", p.Off, p.Bytes); err != nil {
		return err
	}
	if p.Mode != transfer.Devmem {
		return nil
	}
	return check("page pool", p.PoolOff, p.PoolBytes)
}

// verify digests the destination, and compares with the digest of what the seed says was sent.
func (l *runner) verify(ctx context.Context, r *Run, e *end, off, n, seed uint64) error {
	got, want := sha256.New(), sha256.New()
	var eg errgroup.Group
	eg.Go(func() error {
		return e.view(ctx, off, n, func(b []byte) error { _, err := got.Write(b); return err })
	})
	eg.Go(func() error { return pattern(ctx, want, seed, n) })
	if err := eg.Wait(); err != nil {
		return fmt.Errorf("digest of the destination: %w", err)
	}
	sum := got.Sum(nil)
	if !bytes.Equal(sum, want.Sum(nil)) {
		r.SHA256Match = false
	}
	if r.SHA256 == "" {
		r.SHA256 = hex.EncodeToString(sum)
	} else {
		r.SHA256 += "," + hex.EncodeToString(sum)
	}
	return nil
}

func pattern(ctx context.Context, h hash.Hash, seed, n uint64) error {
	b := make([]byte, 1<<18)
	for off := uint64(0); off < n; {
		k := min(n-off, uint64(len(b)))
		gpumem.FillAt(b[:k], seed, off)
		h.Write(b[:k])
		off += k
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// audit scans the RAM of both guests for what was sent.
func (l *runner) audit(ctx context.Context, r *Run, s gpumem.Stream) error {
	if r.Audit == nil {
		return nil
	}
	var hits [2][]gpumem.Hit
	var scanned [2]uint64
	var eg errgroup.Group
	for i, e := range l.ends {
		eg.Go(func() (err error) {
			if hits[i], scanned[i], err = e.audit(ctx, s); err != nil {
				return fmt.Errorf("audit of guest %s: %w", e.name, err)
			}
			return nil
		})
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	r.Audit.BytesScanned += scanned[0] + scanned[1]
	r.Audit.HitsSender += len(hits[0])
	r.Audit.HitsReceiver += len(hits[1])
	for _, h := range append(hits[0], hits[1]...) {
		r.Audit.BytesFound += h.Len
	}
	return nil
}

// audit scans a guest's RAM: all that QEMU gave it, or all that an in-process guest shares with its NIC but the GPU.
func (e *end) audit(ctx context.Context, s gpumem.Stream) (hits []gpumem.Hit, scanned uint64, err error) {
	streams := []gpumem.Stream{s}
	if e.qemu != nil {
		ram := e.qemu.RAM()
		st, err := ram.Stat()
		if err != nil {
			return nil, 0, err
		}
		hits, err = gpumem.AuditReader(ram, st.Size(), streams)
		return hits, uint64(st.Size()), err
	}
	for _, r := range e.nic.Space().Regions() {
		if r.NoAccess || r.File.GPU() >= 0 {
			continue
		}
		region, err := r.File.Region(r.FileOffset, r.Size)
		if err != nil {
			return nil, 0, err
		}
		if err := viewRegion(ctx, region, 0, r.Size, 1<<30, func(b []byte) error {
			hits = append(hits, gpumem.Audit(b, streams)...)
			return nil
		}); err != nil {
			return nil, 0, err
		}
		scanned += r.Size
	}
	return hits, scanned, nil
}
