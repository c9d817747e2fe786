package block

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/session"
)

// Options are the flags and the argument of `vnic block`.
type Options struct {
	session.Options

	URL     string // of the user's device (parseTarget); "": a device of the command's own
	Read    bool   // if Read, Write and Verify are false, Complete sets Read, and without URL all three
	Write   bool
	Verify  bool
	Size    uint64
	Offset  uint64 // where the Size bytes begin on the device
	Block   uint64
	Depth   int
	Random  bool
	Content string // what the user's device has: ContentUnknown or ContentNBDKit
	Timeout time.Duration

	target target
	room   uint64 // GPU memory for data, in bytes
}

// Values of Options.Content.
const (
	ContentUnknown = ""
	ContentNBDKit  = "nbdkit-pattern" // each aligned 8 bytes are their own offset, big endian (nbdkit-pattern-plugin)
)

// Defaults returns the options of the command without flags, but with Seed 0; without --seed the command draws one.
func Defaults() Options {
	o := Options{Options: session.Defaults(), Size: 64 << 20, Block: 128 << 10, Depth: 8,
		Timeout: time.Duration(limits.Silence)}
	o.Guests = 1
	return o
}

const (
	maxBlock = 32 << 20
	maxDepth = 1023
	maxSize  = 1 << 40
)

// Complete sets the options that follow from others, and returns an error for invalid ones.
func (o *Options) Complete() (err error) {
	if err := cmp.Or(session.Bytes("--size", o.Size, maxSize), session.Bytes("--bs", o.Block, maxBlock),
		session.Number("--qd", o.Depth, 1, maxDepth), session.Patience("--timeout", o.Timeout),
		session.Modes(o.Modes)); err != nil {
		return err
	}
	switch {
	case o.Offset > math.MaxInt64-o.Size:
		return fmt.Errorf("--offset %d: with --size %d beyond the %d bytes that any device may have", o.Offset, o.Size,
			math.MaxInt64)
	case o.Content != ContentUnknown && o.Content != ContentNBDKit:
		return fmt.Errorf("--content %s: %s, or nothing", o.Content, ContentNBDKit)
	case o.Verify && o.Read && !o.Write && o.URL != "" && o.Content == ContentUnknown:
		return errors.New("--verify with --read alone: say what the device has by --content, or give --write")
	}
	if !o.Read && !o.Write && !o.Verify {
		o.Read = true
		o.Write, o.Verify = o.URL == "", o.URL == ""
	}
	if o.Verify && !o.Read && !o.Write {
		return errors.New("--verify: of what? --write, or --read with --content")
	}
	if o.URL != "" {
		if o.target, err = parseTarget(o.URL); err != nil {
			return err
		}
		if o.Gateway == nil {
			o.Gateway = &lab.GatewayFlags{HostPorts: strconv.Itoa(int(o.target.port))}
		}
	}
	return o.fit()
}

// fit sets room and Window. It returns an error if the guest can use too little GPU memory for the page pool and an
// operation.
func (o *Options) fit() error {
	name, has, err := o.Only()
	if err != nil {
		return err
	}
	if has < session.Pool+1<<20 || has-session.Pool < o.Block {
		return fmt.Errorf("guest %s can use %s of its GPU's memory: that is too little for %s of pages and an operation of "+
			"%s: a larger --gpu-memory, or a smaller --bs", name, lab.ShowBytes(has), lab.FormatBytes(session.Pool),
			lab.ShowBytes(o.Block))
	}
	o.room = min(session.Pages(o.Size), (has-session.Pool)&^(devmem.PageSize-1))
	o.Window = session.Pool + o.room
	return o.Check()
}
