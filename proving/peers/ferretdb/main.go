// FerretDB as a server of `nearstate bench run`: MongoDB's wire protocol over a loopback socket,
// records in SQLite files of a folder in memory.
//
// `go install` of FerretDB's own command gives a program that refuses to start: the file with its
// version is made by its build system and is not part of the module. So its embeddable package,
// which is meant for this, is started here.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/url"
	"os"
	"runtime/debug"

	"github.com/FerretDB/FerretDB/ferretdb"
)

const module = "github.com/FerretDB/FerretDB"

// version is that of the module which this program was linked with.
func version(path string) string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return "?"
	}
	for _, dependency := range build.Deps {
		if dependency.Path == path {
			return dependency.Version
		}
	}
	return "?"
}

func main() {
	tells := flag.Bool("version", false, "tell the version and end")
	address := flag.String("listen", "", "address and port of the loopback interface")
	folder := flag.String("folder", "", "folder in memory for the files of SQLite")
	flag.Parse()
	if *tells {
		fmt.Printf("FerretDB %s, SQLite by modernc.org/sqlite %s\n",
			version(module), version("modernc.org/sqlite"))
		return
	}
	if *address == "" || *folder == "" {
		log.Fatal("give -listen 127.0.0.1:PORT and -folder FOLDER")
	}
	// Nothing is to be flushed: no target of the bench writes to a disk.
	files := url.URL{
		Scheme: "file", OmitHost: true, Path: *folder + "/", RawQuery: "_pragma=synchronous(off)",
	}
	// A refused request is answered; it need not be told on the terminal as well.
	quiet := &slog.HandlerOptions{Level: slog.LevelError}
	server, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{TCP: *address},
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, quiet)),
		Handler:   "sqlite",
		SQLiteURL: files.String(),
	})
	if err != nil {
		log.Fatalf("starting FerretDB on %s in %s: %v", *address, *folder, err)
	}
	// It ends when it is killed.
	if err := server.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
