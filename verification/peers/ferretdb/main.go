// FerretDB as a server of `nearstate bench run`: MongoDB's wire protocol over a loopback socket,
// records in SQLite files of a folder in memory.
//
// `go install` of FerretDB's own command gives a program that refuses to start: the file with its
// version is made by its build system and is not part of the module. So its embeddable package,
// which is meant for this, is started here.
package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/FerretDB/FerretDB/ferretdb"
	_ "modernc.org/sqlite"
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

// index makes an index for what FerretDB searches a key by, in every collection of a folder.
//
// FerretDB 1.24.0 makes its own over `_ferretdb_sjson->"_id"` and asks for
// `_ferretdb_sjson->'$._id'`: SQLite finds that these are two expressions, and reads the whole
// table for every key. No size worth measuring can be loaded then.
func index(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.sqlite"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := indexFile(file); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

func indexFile(file string) error {
	path := url.URL{
		Scheme: "file", OmitHost: true, Path: file, RawQuery: "_pragma=busy_timeout(10000)",
	}
	database, err := sql.Open("sqlite", path.String())
	if err != nil {
		return err
	}
	defer database.Close()
	rows, err := database.Query("SELECT table_name FROM _ferretdb_collections")
	if err != nil {
		return err
	}
	var tables []string
	for rows.Next() {
		var table string
		if err := rows.Scan(&table); err != nil {
			return err
		}
		tables = append(tables, table)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, table := range tables {
		line := fmt.Sprintf(`CREATE INDEX IF NOT EXISTS %q ON %q (_ferretdb_sjson->'$._id')`,
			table+"_by_key", table)
		if _, err := database.Exec(line); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	tells := flag.Bool("version", false, "tell the version and end")
	address := flag.String("listen", "", "address and port of the loopback interface")
	folder := flag.String("folder", "", "folder in memory for the files of SQLite")
	indexes := flag.Bool("index", false, "add what FerretDB's searches lack, and end")
	flag.Parse()
	if *tells {
		fmt.Printf("FerretDB %s, SQLite by modernc.org/sqlite %s\n",
			version(module), version("modernc.org/sqlite"))
		return
	}
	if *indexes && *folder != "" {
		if err := index(*folder); err != nil {
			log.Fatalf("making indexes in %s: %v", *folder, err)
		}
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
