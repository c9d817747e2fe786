// Rails sends a text from each device of guest 1 to guest 0's device on the same rail, from GPU memory to GPU memory.
// Guest 0 checks the texts; both devices must have the same name.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
)

const size = 1 << 20

const stuckAfter = 2 * time.Minute

func main() {
	debug.SetTraceback("all")
	time.AfterFunc(stuckAfter, func() { panic(fmt.Sprintf("nothing has ended in %v", stuckAfter)) })
	names, err := guest.Devices()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var all []*guest.Device
	for _, name := range names {
		d, err := guest.OpenDevice(context.Background(), name)
		if err != nil {
			fmt.Println(name, err)
			os.Exit(1)
		}
		all = append(all, d)
	}
	var eg errgroup.Group
	for i, d := range all {
		eg.Go(func() error {
			do := send
			if d.Index == 0 {
				do = receive
			}
			if err := do(d, names[i]); err != nil {
				return fmt.Errorf("%s: %w", names[i], err)
			}
			return nil
		})
	}
	if err := eg.Wait(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, d := range all {
		if err := d.Close(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
}

func text(name string) []byte {
	line := fmt.Sprintf("%-15s\n", "over "+name)
	return []byte(strings.Repeat(line, size/len(line)))
}

func send(d *guest.Device, name string) error {
	m, err := d.Alloc(size)
	if err != nil {
		return err
	}
	if _, err := m.WriteAt(text(name), 0); err != nil {
		return err
	}
	b, err := d.BindTX(m.Buffer)
	if err != nil {
		return err
	}
	c, err := d.DialGuest(context.Background(), 0, 5201)
	if err != nil {
		return err
	}
	for done := 0; done < size; {
		n, err := c.SendDevmem(b.ID(), []devmem.Range{{Off: uint64(done), Len: uint64(size - done)}})
		if err != nil {
			return err
		}
		if _, _, err := c.ReadCompletion(time.Time{}); err != nil {
			return err
		}
		done += n
	}
	return c.Close()
}

func receive(d *guest.Device, name string) error {
	l, err := d.ListenGPU(5201, 8<<20)
	if err != nil {
		return err
	}
	c, err := l.AcceptConn()
	if err != nil {
		return err
	}
	var got bytes.Buffer
	frags, linear := make([]devmem.Frag, 64), make([]byte, 64<<10)
	var tokens devmem.Tokens
	for {
		_, n, _, err := c.RecvDevmem(frags, linear, 0)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		for _, f := range frags[:n] {
			if f.Kind != devmem.Dmabuf {
				return fmt.Errorf("%d bytes are not in GPU memory", f.Size)
			}
			if _, err := io.Copy(&got, io.NewSectionReader(l.Memory, int64(f.Off), int64(f.Size))); err != nil {
				return err
			}
			tokens.Add(f.Token)
		}
		if err := tokens.GiveBack(c); err != nil {
			return err
		}
	}
	if !bytes.Equal(got.Bytes(), text(name)) {
		return fmt.Errorf("%d bytes that are not what was sent there", got.Len())
	}
	fmt.Printf("%s: %d bytes, GPU %d\n%s at %v\n", name, got.Len(), d.GPU, name, d.Addr)
	return c.Close()
}
