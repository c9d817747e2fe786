// Package pci builds the configuration space of an emulated PCI device (PCI Local Bus 3.0, chapter 6; PCI
// Express Base 5.0, 7.5).
//
// A Config stores writes of the driver to writable bits, and does not act on them. Only one goroutine may use it at a
// time.
//
// The package is API (README, Stability).
package pci

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var le = binary.LittleEndian

// ErrBounds is the error for an access beyond the space.
var ErrBounds = errors.New("beyond the configuration space")

// Sizes of a configuration space, in bytes.
const (
	Size        = 256  // conventional PCI
	ExpressSize = 4096 // PCI Express
)

// Offsets of registers of a type 0 header (PCI 3.0, 6.1), and of the first capability.
const (
	regVendor    = 0x00
	regDevice    = 0x02
	regCommand   = 0x04
	regStatus    = 0x06
	regRevision  = 0x08
	regClass     = 0x09
	regCacheLine = 0x0c
	regBAR0      = 0x10
	regSubVendor = 0x2c
	regSubDevice = 0x2e
	regCapPtr    = 0x34
	regIntLine   = 0x3c
	firstCap     = 0x40
)

// Bits of the command register (PCI 3.0, 6.2.2) and of the status register (6.2.3).
const (
	commandMemory    = 1 << 1
	commandBusMaster = 1 << 2
	commandParity    = 1 << 6
	commandSERR      = 1 << 8
	commandNoINTx    = 1 << 10
	statusCapList    = 1 << 4
)

// Options describe a device whose BARs are all in memory space, none in I/O space.
type Options struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Class                uint32 // 24 bits: base class, subclass, programming interface
	Revision             uint8
	BARs                 [6]BAR
	MSIX                 MSIX
	Express              Link // if not zero, a PCI Express endpoint with this link
}

// Config is a configuration space.
type Config struct {
	data  []byte
	mask  []byte // writable bits
	reset []byte // data after reset
	msix  int    // offset of the MSI-X capability; 0: there is none
}

// New returns the configuration space of a device after reset, or an error if the options are out of range or do not
// fit together.
func New(o Options) (*Config, error) {
	size := Size
	if o.Express != (Link{}) {
		size = ExpressSize
		if err := o.Express.check(); err != nil {
			return nil, err
		}
	}
	c := &Config{data: make([]byte, size), mask: make([]byte, size)}
	if o.Class>>24 != 0 {
		return nil, fmt.Errorf("class %#x has more than 24 bits", o.Class)
	}
	le.PutUint16(c.data[regVendor:], o.Vendor)
	le.PutUint16(c.data[regDevice:], o.Device)
	le.PutUint16(c.data[regSubVendor:], o.SubVendor)
	le.PutUint16(c.data[regSubDevice:], o.SubDevice)
	le.PutUint32(c.data[regRevision:], o.Class<<8|uint32(o.Revision))
	le.PutUint16(c.mask[regCommand:], commandMemory|commandBusMaster|commandParity|commandSERR|commandNoINTx)
	c.mask[regCacheLine] = 0xff
	c.mask[regIntLine] = 0xff
	if err := c.addBARs(&o.BARs); err != nil {
		return nil, err
	}
	next, link := firstCap, regCapPtr
	if o.Express != (Link{}) {
		c.addExpress(next, link, o.Express)
		next, link = next+expressLen, next+1
	}
	if o.MSIX.Vectors != 0 {
		if err := c.addMSIX(next, link, &o.MSIX, &o.BARs); err != nil {
			return nil, err
		}
	}
	c.reset = append([]byte(nil), c.data...)
	return c, nil
}

// capability begins a capability at off; link is the offset of the pointer to it.
func (c *Config) capability(off, link int, id byte) {
	c.data[regStatus] |= statusCapList
	c.data[link] = byte(off)
	c.data[off] = id
}

// Size returns the size of the space in bytes.
func (c *Config) Size() uint64 { return uint64(len(c.data)) }

// Reset restores the state that New returned.
func (c *Config) Reset() { copy(c.data, c.reset) }

func (c *Config) check(off uint64, b []byte) error {
	if size := c.Size(); off > size || uint64(len(b)) > size-off {
		return fmt.Errorf("[%#x, +%#x) of %#x: %w", off, len(b), size, ErrBounds)
	}
	return nil
}

// Read fills b from offset off. A read that does not fit in the space is ErrBounds.
func (c *Config) Read(off uint64, b []byte) error {
	if err := c.check(off, b); err != nil {
		return err
	}
	copy(b, c.data[off:])
	return nil
}

// Write writes b at offset off; bits that are not writable stay. A write that does not fit in the space is ErrBounds
// and changes nothing.
func (c *Config) Write(off uint64, b []byte) error {
	if err := c.check(off, b); err != nil {
		return err
	}
	data, mask := c.data[off:], c.mask[off:]
	for i, v := range b {
		data[i] = data[i]&^mask[i] | v&mask[i]
	}
	return nil
}

func (c *Config) command() uint16 { return le.Uint16(c.data[regCommand:]) }

// MemoryEnabled reports whether the driver has enabled memory space: whether the device is to answer in its BARs.
func (c *Config) MemoryEnabled() bool { return c.command()&commandMemory != 0 }

// BusMaster reports whether the driver has allowed the device to do DMA and send MSI-X messages.
func (c *Config) BusMaster() bool { return c.command()&commandBusMaster != 0 }
