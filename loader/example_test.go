package loader_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/loader"
)

// run is a training loop over the records of a file, here of 4 bytes each.
func run(ctx context.Context, url string) (err error) {
	gpu, err := plain.NewGPU(8 << 20)
	if err != nil {
		return err
	}
	defer gpu.Close()
	dev, err := plain.New(plain.Options{GPUs: []*plain.GPU{gpu}}) // or a device of package stack, or devmem/kernel
	if err != nil {
		return err
	}
	defer dev.Close()
	data, err1 := dev.Register(0, 0, 4<<20)
	pool, err2 := dev.Register(0, 4<<20, 4<<20)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	file, err := loader.Open(ctx, url, loader.Config{Device: dev, Memory: plain.NewMemory(gpu), Queue: 1, Pool: pool})
	if err != nil {
		return err
	}
	defer file.Close()
	records, err := file.Records(ctx, loader.RecordsConfig{Buffer: data, RecordSize: 4, Batch: 2, Depth: 3})
	if err != nil {
		return err
	}
	defer records.Close()
	for {
		batch, err := records.Next(ctx)
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		fmt.Printf("%d records: %q\n", batch.Records, gpu.Bytes()[batch.Off:batch.Off+batch.Len]) // instead of training
		if err := records.Release(); err != nil {
			return err
		}
	}
}

func Example() {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "data", time.Unix(0, 0), bytes.NewReader([]byte("one two six ten end.")))
	}))
	defer s.Close()
	if err := run(context.Background(), s.URL); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 2 records: "one two "
	// 2 records: "six ten "
	// 1 records: "end."
}
