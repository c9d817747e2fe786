package run

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// poisoned makes sure that destination and pool hold nothing of any payload before a round: the
// digest cannot be that of an earlier one.
func (s *stream) poisoned(ctx context.Context, e *end, p transfer.PrepareArgs) error {
	want := bytes.Repeat([]byte{byte(p.Seed)}, 8<<10) // stays in the first cache
	check := func(what string, off, n uint64) error {
		return e.Each(ctx, off, n, func(b []byte, _ uint64) error {
			for len(b) > 0 {
				k := min(len(b), len(want))
				if !bytes.Equal(b[:k], want[:k]) {
					return fmt.Errorf("%s of guest %s is not poisoned as ordered", what, e.Name)
				}
				b = b[k:]
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

// Kinds of digests, as users name them.
const (
	DigestPieces = "pieces" // the SHA-256 of the SHA-256s of the pieces of 1 MiB
	DigestSHA256 = "sha256" // of all bytes
)

// maxWrong is for how many rounds a message says which byte is wrong.
const maxWrong = 8

// sum is a digest.
type sum = [sha256.Size]byte

// engineDigest has a GPU's engine digest [off, off+n) of what its guest has of the memory; until hurry is closed, where
// nothing else wants to run. nil is closed.
func (e *end) engineDigest(ctx context.Context, off, n uint64, hurry <-chan struct{}) (d sum, err error) {
	extents, err := e.Extents(off, n)
	if err != nil {
		return d, err
	}
	if d, err = e.nic().Digest(ctx, e.GPU.ID(), extents, hurry); err != nil {
		err = fmt.Errorf("guest %s: %w", e.Name, err)
	}
	return d, err
}

// digestSource digests what is sent, with the sender's engine; hurry as engineDigest has it. Of kind sha256 nothing is
// digested before the transfer has ended.
func (t *round) digestSource(ctx context.Context, hurry <-chan struct{}) (err error) {
	if t.s.opt.Digest == DigestPieces {
		t.source, err = t.s.ends[0].digest(ctx, t.send.Off, t.n, hurry)
	}
	return err
}

// verify compares the destination with what the seed says was sent, byte by byte, and its digest with the source's.
// Where the destination is away the source is compared, which nobody may have changed.
// The comparison is the host's own and asks nobody. Of kind pieces each digest is an engine's; of kind sha256 both are
// the host's, and the source's is the pattern's.
func (t *round) verify(ctx context.Context, r *Run) error {
	e, off, what := t.s.ends[1], t.recv.Off, "destination"
	if e.away() {
		e, off, what = t.s.ends[0], t.send.Off, "source"
	}
	source, destination := t.source, sum{}
	var first atomic.Uint64 // byte that is wrong
	first.Store(t.n)
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error {
		return e.Each(ctx, off, t.n, func(b []byte, pos uint64) error {
			if k := gpumem.MatchAt(b, t.seed, pos); k < len(b) {
				pos += uint64(k)
				for was := first.Load(); pos < was && !first.CompareAndSwap(was, pos); was = first.Load() {
				}
			}
			return nil
		})
	})
	if t.s.opt.Digest == DigestPieces {
		eg.Go(func() (err error) { destination, err = e.digest(ctx, off, t.n, nil); return err })
	} else {
		eg.Go(func() (err error) {
			h := sha256.New()
			err = e.View(ctx, off, t.n, func(b []byte) error { _, err := h.Write(b); return err })
			h.Sum(destination[:0])
			return err
		})
		eg.Go(func() (err error) { source, err = pattern(ctx, t.seed, t.n); return err })
	}
	if err := eg.Wait(); err != nil {
		return fmt.Errorf("digest of the %s: %w", what, err)
	}
	if pos := first.Load(); pos < t.n && len(t.s.wrong) < maxWrong {
		t.s.wrong = append(t.s.wrong,
			fmt.Errorf("mode %s, round %d: byte %d of the %s is not what the seed says", t.mode, t.number, pos, what))
	}
	r.SHA256Match = r.SHA256Match && first.Load() == t.n && source == destination
	if r.SHA256 != "" {
		r.SHA256 += ","
	}
	r.SHA256 += hex.EncodeToString(destination[:])
	return nil
}

// pattern is the SHA-256 of the first n bytes of a seed's pattern.
func pattern(ctx context.Context, seed, n uint64) (d sum, err error) {
	h := sha256.New()
	b := make([]byte, 1<<18)
	for off := uint64(0); off < n; {
		k := min(n-off, uint64(len(b)))
		gpumem.FillAt(b[:k], seed, off)
		h.Write(b[:k])
		off += k
		if err := context.Cause(ctx); err != nil {
			return d, err
		}
	}
	h.Sum(d[:0])
	return d, nil
}

// audit scans the RAM of both guests for what was sent.
func (s *stream) audit(ctx context.Context, r *Run, sent gpumem.Stream) error {
	if r.Audit == nil {
		return nil
	}
	var hits [2][]gpumem.Hit
	var scanned [2]uint64
	var eg errgroup.Group
	for i, e := range s.ends {
		if e.away() {
			continue
		}
		eg.Go(func() (err error) {
			if hits[i], scanned[i], err = e.audit(ctx, sent); err != nil {
				return fmt.Errorf("audit of guest %s: %w", e.Name, err)
			}
			return nil
		})
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	r.Audit.BytesScanned += scanned[0] + scanned[1]
	r.Audit.HitsSender += uint64(len(hits[0]))
	r.Audit.HitsReceiver += uint64(len(hits[1]))
	for _, h := range append(hits[0], hits[1]...) {
		r.Audit.BytesFound += h.Len
	}
	return nil
}

// audit scans a guest's RAM: all that QEMU gave it, or all that an in-process guest shares with its NIC but the GPU.
func (e *end) audit(ctx context.Context, s gpumem.Stream) (hits []gpumem.Hit, scanned uint64, err error) {
	streams := []gpumem.Stream{s}
	if e.QEMU != nil {
		for _, ram := range e.QEMU.RAM() {
			st, err := ram.Stat()
			if err != nil {
				return nil, 0, err
			}
			found, err := gpumem.AuditReader(ram, st.Size(), streams)
			if err != nil {
				return nil, 0, err
			}
			hits, scanned = append(hits, found...), scanned+uint64(st.Size())
		}
		return hits, scanned, nil
	}
	for _, r := range e.Port.Space().Regions() {
		if r.NoAccess || r.File.GPU() >= 0 {
			continue
		}
		region, err := r.File.Region(r.FileOffset, r.Size)
		if err != nil {
			return nil, 0, err
		}
		if err := session.ViewRegion(ctx, region, 0, r.Size, 1<<30, func(b []byte) error {
			hits = append(hits, gpumem.Audit(b, streams)...)
			return nil
		}); err != nil {
			return nil, 0, err
		}
		scanned += r.Size
	}
	return hits, scanned, nil
}
