package run

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// poisoned returns an error unless each byte of the destination of p in e's GPU memory, and in mode devmem of the page
// pool, is the poison value: the low byte of p.Seed.
func (s *stream) poisoned(ctx context.Context, e *end, p transfer.PrepareArgs) error {
	want := bytes.Repeat([]byte{byte(p.Seed)}, 8<<10) // fits a processor's first-level cache
	check := func(what string, off, n uint64) error {
		return e.Each(ctx, off, n, func(b []byte, _ uint64) error {
			for part := range slices.Chunk(b, len(want)) {
				if !bytes.Equal(part, want[:len(part)]) {
					return fmt.Errorf("%s of guest %s is not poisoned as ordered", what, e.Name)
				}
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

// Values of Options.Digest.
const (
	DigestPieces = "pieces" // the SHA-256 of the SHA-256s of the pieces of 1 MiB; the last may be shorter
	DigestSHA256 = "sha256" // the SHA-256 of all bytes
)

// maxWrong is the most errors in stream.wrong.
const maxWrong = 8

type sum = [sha256.Size]byte

// engineDigest computes the digest, of the kind DigestPieces, of [off, off+n) of the guest's GPU memory on the GPU's
// engine: at low priority until hurry is closed (gpumem.Engine.DigestIdle), or at normal priority if hurry is nil.
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

// digestSource sets t.source to the source's digest if Options.Digest is DigestPieces; else it does nothing. hurry: see
// engineDigest.
func (t *round) digestSource(ctx context.Context, hurry <-chan struct{}) (err error) {
	if t.s.opt.Digest == DigestPieces {
		t.source, err = t.s.ends[0].digest(ctx, t.send.Off, t.n, hurry)
	}
	return err
}

// verify compares each byte of the destination with the byte that the seed generates, and the destination's digest with
// the source's (DigestPieces) or that of the seed's bytes. If the receiver is on another host, it compares the source
// so, in the destination's place. This process compares the bytes, without the guests. A difference makes
// r.SHA256Match false, and is no error.
func (t *round) verify(ctx context.Context, r *Run) error {
	e, off, what := t.s.ends[1], t.recv.Off, "destination"
	if e.away() {
		e, off, what = t.s.ends[0], t.send.Off, "source"
	}
	source, destination, first := t.source, sum{}, t.n // first: position of the first wrong byte; t.n: none
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() (err error) {
		match := func(b []byte, pos uint64) int { return gpumem.MatchAt(b, t.seed, pos) }
		first, err = e.FirstWrong(ctx, off, t.n, match)
		return err
	})
	if t.s.opt.Digest == DigestPieces {
		eg.Go(func() (err error) { destination, err = e.digest(ctx, off, t.n, nil); return err })
	} else {
		eg.Go(func() (err error) { destination, err = e.SHA256(ctx, off, t.n); return err })
		eg.Go(func() (err error) { source, err = session.Pattern(t.seed).SHA256(ctx, t.n); return err })
	}
	if err := eg.Wait(); err != nil {
		return fmt.Errorf("digest of the %s: %w", what, err)
	}
	if first < t.n && len(t.s.wrong) < maxWrong {
		t.s.wrong = append(t.s.wrong,
			fmt.Errorf("mode %s, round %d: byte %d of the %s is not what the seed says", t.mode, t.number, first, what))
	}
	r.SHA256Match = r.SHA256Match && first == t.n && source == destination
	if r.SHA256 != "" {
		r.SHA256 += ","
	}
	r.SHA256 += hex.EncodeToString(destination[:])
	return nil
}

// audit searches the RAM of the guests on this host for the payload sent, and adds what it finds to r.Audit. If that is
// nil, it does nothing.
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

// audit searches a guest's RAM for payload of s: in QEMU all RAM of its machine, in this process the memory that the
// guest shares with the NIC, except GPU memory.
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
