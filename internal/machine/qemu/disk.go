package qemu

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// sectorSize is the unit of virtio-blk's capacity, in bytes (virtio 1.3, 5.2.4).
const sectorSize = 512

// maxSerial is the length of the longest serial number, in bytes (virtio 1.3, 5.2.6: VIRTIO_BLK_T_GET_ID).
const maxSerial = 20

// Disk is a virtio-blk-pci (1af4:1042), backed by a file.
//
// QEMU accesses the file through the host's page cache, and locks it (fcntl(2), open file description locks).
type Disk struct {
	File     *os.File // a regular file; the caller closes it
	Serial   string   // /sys/block/vdX/serial in the guest; "" = none
	ReadOnly bool
}

func (d *Disk) args(id string, f *files, on string) []string {
	device := fmt.Sprintf("virtio-blk-pci,id=dev-%s,drive=%s,disable-legacy=on", id, id) + on
	if d.Serial != "" {
		device += ",serial=" + comma(d.Serial)
	}
	return []string{"-blockdev", fmt.Sprintf("driver=file,node-name=%s,filename=%s,read-only=%s,cache.direct=off,"+
		"cache.no-flush=off", id, comma(f.path(d.File)), onOff(d.ReadOnly)), "-device", device}
}

// check returns an error if the disk is invalid or its file cannot be examined. QEMU would round a size that is no
// multiple of a sector.
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

// checkDisks returns an error if a disk is invalid, or if two disks have the same serial number.
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

func (c *Config) disks(f *files) (args []string) {
	for i := range c.Disks {
		args = append(args, c.Disks[i].args("disk"+strconv.Itoa(i), f, c.on(""))...)
	}
	return args
}
