// An NRF of free5GC's types (github.com/free5gc/openapi, models of Nnrf_NFManagement): the profile of
// a node must decode into them without a remainder, and they encode to what the node has sent.
// free5GC's NRF itself is in no module that the proxy of Go serves.
//
// Starts NEARSTATE_PROGRAM with this NRF, and ends it. `ok NAME` on standard output reports a part
// that passed.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"syscall"
	"time"

	"github.com/free5gc/openapi"
	"github.com/free5gc/openapi/models"
)

const (
	instance = "4947a69a-f61b-4bc1-b9da-47c9c5d14b64"
	path     = "/nnrf-nfm/v1/nf-instances/" + instance
	// The longest wait for a request of the node.
	waitMax = 60 * time.Second
)

func good(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func same(got, want interface{}) {
	if !reflect.DeepEqual(got, want) {
		log.Panicf("got %#v, want %#v", got, want)
	}
}

// request is what the node has sent.
type request struct {
	method, media string
	body          []byte
}

// strict decodes JSON into a type of free5GC, which must know every attribute.
func strict(body []byte, into interface{}) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	good(decoder.Decode(into))
}

// tree is a JSON text without the order of its attributes.
func tree(body []byte) (value interface{}) {
	good(json.Unmarshal(body, &value))
	return value
}

func profileOf(body []byte) models.NrfNfManagementNfProfile {
	var profile models.NrfNfManagementNfProfile
	strict(body, &profile)
	encoded, err := openapi.Serialize(profile, "application/json")
	good(err)
	same(tree(encoded), tree(body))
	return profile
}

func freeAddress() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	good(err)
	defer listener.Close()
	return listener.Addr().String()
}

func main() {
	requests := make(chan request, 16)
	next := func(method string) request {
		select {
		case got := <-requests:
			same(got.method, method)
			return got
		case <-time.After(waitMax):
			log.Panicf("the node sends no %s", method)
		}
		return request{}
	}
	handle := func(out http.ResponseWriter, in *http.Request) {
		body, err := io.ReadAll(in.Body)
		good(err)
		same(in.URL.Path, path)
		same(in.ProtoMajor, 2)
		if in.Method == http.MethodPut {
			profile := profileOf(body)
			profile.HeartBeatTimer = 1
			encoded, err := openapi.Serialize(profile, "application/json")
			good(err)
			out.Header().Set("Content-Type", "application/json")
			out.Header().Set("Location", "http://"+in.Host+path)
			out.WriteHeader(http.StatusCreated)
			_, err = out.Write(encoded)
			good(err)
		} else {
			out.WriteHeader(http.StatusNoContent)
		}
		requests <- request{in.Method, in.Header.Get("Content-Type"), body}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	good(err)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := http.Server{Handler: http.HandlerFunc(handle), Protocols: &protocols}
	go func() { log.Panic(server.Serve(listener)) }()

	folder, err := os.MkdirTemp("", "nrf")
	good(err)
	defer os.RemoveAll(folder)
	service := freeAddress()
	node := exec.Command(os.Getenv("NEARSTATE_PROGRAM"), "serve", "--cores", "1", "--listen", "",
		"--unix", filepath.Join(folder, "socket"), "--region", filepath.Join(folder, "region"),
		"--nudsf", service, "--nudsf-storages", "Realm01/Storage01=ue",
		"--nudsf-nrf", "http://"+listener.Addr().String(), "--nudsf-nf-instance", instance)
	node.Stderr = os.Stderr
	good(node.Start())
	defer node.Process.Kill()

	profile := profileOf(next(http.MethodPut).body)
	same(profile.NfInstanceId, instance)
	same(profile.NfType, models.NrfNfManagementNfType_UDSF)
	same(profile.NfStatus, models.NrfNfManagementNfStatus_REGISTERED)
	same(profile.UdsfInfo.StorageIdRanges["Realm01"], []models.IdentityRange{{Pattern: "^Storage01$"}})
	names := []models.ServiceName{}
	for _, offered := range profile.NfServices {
		names = append(names, offered.ServiceName)
		point := offered.IpEndPoints[0]
		same(fmt.Sprintf("%s:%d", point.Ipv4Address, point.Port), service)
	}
	same(names, []models.ServiceName{models.ServiceName_NUDSF_DR, models.ServiceName_NUDSF_TIMER})
	fmt.Println("ok register")
	beat := next(http.MethodPatch)
	same(beat.media, "application/json-patch+json")
	var items []models.PatchItem
	strict(beat.body, &items)
	same(items, []models.PatchItem{{Op: models.PatchOperation_REPLACE, Path: "/nfStatus", Value: "REGISTERED"}})
	fmt.Println("ok heart-beat")
	good(node.Process.Signal(syscall.SIGTERM))
	for {
		// A heart-beat may be on its way.
		select {
		case got := <-requests:
			if got.method == http.MethodPatch {
				continue
			}
			same(got.method, http.MethodDelete)
		case <-time.After(waitMax):
			log.Panic("the node does not remove its registration")
		}
		break
	}
	good(node.Wait())
	fmt.Println("ok deregister")
}
