package rdma_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/rdma"
)

// give lets a peer write to the first 16 MiB of a GPU's buffer. It waits for a WRITE with immediate, and then until the
// peer closes the connection.
func give(ctx context.Context, client *control.Client, buffer uint32, local rdma.Ends, l net.Listener) (err error) {
	dev, err := rdma.Open(client)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	mr, err := pd.RegisterBuffer(buffer, 0, 16<<20, rdma.RemoteWrite)
	if err != nil {
		return err
	}
	cq, err := dev.NewCQ(16)
	if err != nil {
		return err
	}
	qp, err := pd.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 8})
	if err != nil {
		return err
	}
	if _, err = qp.PostRecv(ctx, rdma.WR{ID: 1}); err != nil { // for the peer's WRITE with immediate
		return err
	}
	local.Offer = mr.Remote()
	conn, _, err := rdma.Accept(ctx, l, qp, local)
	if err != nil {
		return err
	}
	defer conn.Close()
	wcs, err := cq.Wait(ctx)
	if err != nil {
		return err
	}
	if err = rdma.Err(wcs[0]); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, conn) // keep the queue pair until the peer has its answers and closes conn
	return err
}

// take writes 16 MiB of a buffer of this guest's GPU to the memory that the peer offers.
func take(ctx context.Context, client *control.Client, buffer uint32, local rdma.Ends, peer string) (err error) {
	dev, err := rdma.Open(client)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	mr, err := pd.RegisterBuffer(buffer, 0, 16<<20, 0)
	if err != nil {
		return err
	}
	cq, err := dev.NewCQ(64)
	if err != nil {
		return err
	}
	qp, err := pd.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 32})
	if err != nil {
		return err
	}
	conn, to, err := rdma.Dial(ctx, peer, qp, local)
	if err != nil {
		return err
	}
	defer conn.Close()
	counts, err := rdma.Put(ctx, qp, mr.Part(0, 16<<20), to.MR, rdma.TransferOptions{Notify: true})
	fmt.Println(counts.Bytes, "bytes by", counts.Completed, "work requests")
	return err
}

func Example() {
	// driver.NIC.Control returns the client
	var client *control.Client
	local := rdma.Ends{Addr: netip.MustParseAddr("10.0.0.1"), MAC: [6]byte{2, 0, 0, 0, 0, 1}}
	if err := take(context.Background(), client, 1, local, "10.0.0.2:7000"); err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", ":7000") // in the other guest
	if err == nil {
		err = give(context.Background(), client, 1, local, l)
	}
	if err != nil {
		log.Fatal(err)
	}
}
