package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "huawei.com/Ascend910"
	prefix   = "Ascend910-"
	look     = 500 * time.Millisecond
)

// devicePlugin offers pretend NPUs to one kubelet, named and announced as Ascend's plugin does.
// The file `unhealthy` lists the sick ones; it lies elsewhere than the sockets, whose folder a
// kubelet empties when it starts.
type devicePlugin struct {
	v1beta1.UnimplementedDevicePluginServer
	directory string
	unhealthy string
	count     int
}

func (p *devicePlugin) devices() []*v1beta1.Device {
	text, _ := os.ReadFile(p.unhealthy) // no file: all are well
	sick := map[string]bool{}
	for _, id := range strings.Fields(string(text)) {
		sick[id] = true
	}
	var devices []*v1beta1.Device
	for i := range p.count {
		device := &v1beta1.Device{ID: fmt.Sprint(prefix, i), Health: v1beta1.Healthy}
		if sick[device.ID] {
			device.Health = v1beta1.Unhealthy
		}
		devices = append(devices, device)
	}
	return devices
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(_ *v1beta1.Empty, stream v1beta1.DevicePlugin_ListAndWatchServer) error {
	last := ""
	for stream.Context().Err() == nil {
		devices := p.devices()
		if now := fmt.Sprint(devices); now != last {
			if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			last = now
		}
		time.Sleep(look)
	}
	return nil
}

func (p *devicePlugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	response := &v1beta1.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := append([]string(nil), container.DevicesIds...)
		sort.Strings(ids)
		list := strings.Join(ids, ",")
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs:        map[string]string{"ASCEND_VISIBLE_DEVICES": strings.ReplaceAll(list, prefix, "")},
			Annotations: map[string]string{resource: list},
		})
	}
	return response, nil
}

// serve offers the devices until the socket vanishes, as it does when a kubelet starts anew.
func (p *devicePlugin) serve(ctx context.Context) error {
	socket := filepath.Join(p.directory, "npu.sock")
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, p)
	go server.Serve(listener)
	defer server.Stop()
	if err := p.register(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if _, err := os.Stat(socket); err != nil {
			return fmt.Errorf("the kubelet has started anew")
		}
		time.Sleep(look)
	}
	return nil
}

func (p *devicePlugin) register(ctx context.Context) error {
	target := "unix://" + filepath.Join(p.directory, "kubelet.sock")
	kubelet, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	request := &v1beta1.RegisterRequest{Version: v1beta1.Version, Endpoint: "npu.sock", ResourceName: resource}
	_, err = v1beta1.NewRegistrationClient(kubelet).Register(ctx, request)
	return err
}

func newDevicePluginCommand() *cobra.Command {
	p := &devicePlugin{}
	c := &cobra.Command{Use: "npu-device-plugin", RunE: func(c *cobra.Command, _ []string) error {
		for c.Context().Err() == nil {
			if err := p.serve(c.Context()); err != nil {
				fmt.Fprintln(os.Stderr, "npu-device-plugin:", err)
				time.Sleep(look)
			}
		}
		return nil
	}}
	c.Flags().StringVar(&p.directory, "directory", "", "the kubelet's folder of device plugins")
	c.Flags().StringVar(&p.unhealthy, "unhealthy", "", "a file that lists the sick devices")
	c.Flags().IntVar(&p.count, "count", 8, "number of devices")
	return c
}
