package qemu

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// sectorSize is that of every virtio-blk (virtio 1.3, 5.2.4: capacity is in sectors of 512 bytes).
const sectorSize = 512

// maxSerial is the longest serial number of a virtio-blk (virtio 1.3, 5.2.6: VIRTIO_BLK_T_GET_ID).
const maxSerial = 20

// Disk is a block device of the guest, a virtio-blk-pci (1af4:1042), whose bytes are those of a
// file.
//
// QEMU reads and writes the file through this machine's page cache. So who has the file here sees
// what the guest has written as soon as the guest's request is complete, and the guest sees what is
// written here, unless it has the block in a cache of its own. Of a memfd there is no other copy.
// QEMU takes a lock on the whole file (fcntl(2), open file description locks): a file that another
// QEMU writes is refused.
type Disk struct {
	File     *os.File // regular: a memfd (NewMemory) or a file; stays the caller's
	Serial   string   // by which the guest knows it: /sys/block/vdX/serial; "" = none
	ReadOnly bool     // the guest cannot write
}

// args are those of the disk, at whatever place the root complex has: on is Config.on("").
func (d *Disk) args(id string, f *files, on string) []string {
	readOnly := onOff(d.ReadOnly)
	device := fmt.Sprintf("virtio-blk-pci,id=dev-%s,drive=%s,disable-legacy=on", id, id) + on
	if d.Serial != "" {
		device += ",serial=" + comma(d.Serial)
	}
	return []string{"-blockdev", fmt.Sprintf("driver=file,node-name=%s,filename=%s,read-only=%s,cache.direct=off,"+
		"cache.no-flush=off", id, comma(f.path(d.File)), readOnly), "-device", device}
}

// check says what is wrong with a disk. A size that is no multiple of a sector QEMU would round.
func (d *Disk) check() error {
	if d.File == nil {
		return errors.New("no file")
	}
	st, err := d.File.Stat()
	switch {
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file", d.File.Name())
	case st.Size() == 0 || st.Size()%sectorSize != 0:
		return fmt.Errorf("file of %d bytes: a multiple of %d is needed", st.Size(), sectorSize)
	case len(d.Serial) > maxSerial:
		return fmt.Errorf("serial number %q: at most %d bytes", d.Serial, maxSerial)
	}
	return nil
}

// checkDisks says what is wrong with the disks. With a serial number that two have a guest would
// take either.
func (c *Config) checkDisks() error {
	serials := map[string]int{}
	for i, d := range c.Disks {
		if err := d.check(); err != nil {
			return fmt.Errorf("config: disk %d: %w", i, err)
		}
		if other, ok := serials[d.Serial]; ok && d.Serial != "" {
			return fmt.Errorf("config: disks %d and %d both have the serial number %q", other, i, d.Serial)
		}
		serials[d.Serial] = i
	}
	return nil
}

// disks are the arguments of all disks.
func (c *Config) disks(f *files) (args []string) {
	for i := range c.Disks {
		args = append(args, c.Disks[i].args("disk"+strconv.Itoa(i), f, c.on(""))...)
	}
	return args
}
