// free5GC's generated client of Nudsf (github.com/free5gc/openapi) against a running node. Its
// Release 17 code sends and reads no multipart bodies, so the record is written by net/http; blocks,
// meta, schemas, subscriptions, searches, deletions and timers go through the generated code.
//
// `ok NAME` on standard output reports a part that passed. NEARSTATE_NUDSF is the apiRoot.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"reflect"
	"time"

	"github.com/free5gc/openapi"
	"github.com/free5gc/openapi/models"
	udsf "github.com/free5gc/openapi/udsf/DataRepository"
	timer "github.com/free5gc/openapi/udsf/Timer"
	"golang.org/x/net/http2"
)

var (
	root    = os.Getenv("NEARSTATE_NUDSF")
	realm   = "Realm01"
	storage = "Storage01"
	ctx     = context.Background()
	web     = &http.Client{Transport: &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}}
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

// status is the status of an error of the generated client.
func status(err error) int {
	var answered openapi.GenericOpenAPIError
	if !errors.As(err, &answered) {
		log.Panicf("no answer: %v", err)
	}
	return answered.ErrorStatus
}

func put(record, tag string) {
	body := "--b\r\nContent-Id: meta\r\nContent-Type: application/json\r\n\r\n" +
		`{"tags":{"ueId":["` + tag + `"]}}` + "\r\n--b--\r\n"
	url := root + "/nudsf-dr/v1/" + realm + "/" + storage + "/records/" + record
	request, err := http.NewRequest(http.MethodPut, url, bytes.NewBufferString(body))
	good(err)
	request.Header.Set("Content-Type", "multipart/mixed; boundary=b")
	response, err := web.Do(request)
	good(err)
	good(response.Body.Close())
	same(response.StatusCode, http.StatusCreated)
	same(response.ProtoMajor, 2)
}

func main() {
	configuration := udsf.NewConfiguration()
	configuration.SetBasePath(root)
	client := udsf.NewAPIClient(configuration)
	put("free5gc-1", "1")
	put("free5gc-2", "2")
	record := "free5gc-1"

	block := "amf"
	_, err := client.BlockCRUDApi.CreateOrModifyBlock(ctx, &udsf.CreateOrModifyBlockRequest{
		RealmId: &realm, StorageId: &storage, RecordId: &record, BlockId: &block,
		Body: map[string]interface{}{"state": "REGISTERED"},
	})
	good(err)
	got, err := client.BlockCRUDApi.GetBlock(ctx, &udsf.GetBlockRequest{
		RealmId: &realm, StorageId: &storage, RecordId: &record, BlockId: &block,
	})
	good(err)
	same(got.GetBlockResponse200, map[string]interface{}{"state": "REGISTERED"})
	// It gets a multipart body, which its code cannot read.
	_, err = client.BlockCRUDApi.GetBlockList(ctx, &udsf.GetBlockListRequest{
		RealmId: &realm, StorageId: &storage, RecordId: &record,
	})
	same(err != nil && err.Error() == "undefined response type", true)
	_, err = client.BlockCRUDApi.DeleteBlock(ctx, &udsf.DeleteBlockRequest{
		RealmId: &realm, StorageId: &storage, RecordId: &record, BlockId: &block,
	})
	good(err)
	_, err = client.BlockCRUDApi.GetBlock(ctx, &udsf.GetBlockRequest{
		RealmId: &realm, StorageId: &storage, RecordId: &record, BlockId: &block,
	})
	same(status(err), http.StatusNotFound)
	fmt.Println("ok blocks")

	meta, err := client.RecordCRUDApi.GetMeta(ctx, &udsf.GetMetaRequest{
		RealmId: &realm, StorageId: &storage, RecordId: &record,
	})
	good(err)
	same(meta.RecordMeta.Tags, map[string][]string{"ueId": {"1"}})
	_, err = client.RecordCRUDApi.UpdateMeta(ctx, &udsf.UpdateMetaRequest{
		RealmId: &realm, StorageId: &storage, RecordId: &record, IfMatch: &meta.ETag,
		PatchItem: []models.PatchItem{
			{Op: models.PatchOperation_REPLACE, Path: "/tags/ueId", Value: []string{"3"}},
		},
	})
	good(err)
	old := meta.ETag
	meta, err = client.RecordCRUDApi.GetMeta(ctx, &udsf.GetMetaRequest{
		RealmId: &realm, StorageId: &storage, RecordId: &record,
	})
	good(err)
	same(meta.RecordMeta.Tags, map[string][]string{"ueId": {"3"}})
	same(meta.ETag != old, true)
	fmt.Println("ok meta")

	schema := "free5gc"
	_, err = client.MetaSchemaCRUDApi.CreateOrModifyMetaSchema(ctx, &udsf.CreateOrModifyMetaSchemaRequest{
		RealmId: &realm, StorageId: &storage, SchemaId: &schema,
		MetaSchema: &models.MetaSchema{
			SchemaId: schema,
			MetaTags: []models.TagType{{TagName: "ueId", KeyType: models.KeyType_SEARCH_KEY}},
		},
	})
	good(err)
	// Its type of the response is a record, by a mistake of the contract: the status is checked.
	_, err = client.MetaSchemaCRUDApi.GetMetaSchema(ctx, &udsf.GetMetaSchemaRequest{
		RealmId: &realm, StorageId: &storage, SchemaId: &schema,
	})
	good(err)
	_, err = client.MetaSchemaCRUDApi.DeleteMetaSchema(ctx, &udsf.DeleteMetaSchemaRequest{
		RealmId: &realm, StorageId: &storage, SchemaId: &schema,
	})
	good(err)
	fmt.Println("ok schemas")

	subscription := "free5gc"
	_, err = client.NotificationSubscriptionCRUDApi.CreateAndUpdateNotificationSubscription(ctx,
		&udsf.CreateAndUpdateNotificationSubscriptionRequest{
			RealmId: &realm, StorageId: &storage, SubscriptionId: &subscription,
			NotificationSubscription: &models.NotificationSubscription{
				ClientId:          &models.ClientId{NfId: "4947a69a-f61b-4bc1-b9da-47c9c5d14b64"},
				CallbackReference: "http://127.0.0.1:1/callback",
			},
		})
	good(err)
	all, err := client.NotificationSubscriptionsCRUDApi.GetNotificationSubscriptions(ctx,
		&udsf.GetNotificationSubscriptionsRequest{RealmId: &realm, StorageId: &storage})
	good(err)
	same(len(all.NotificationSubscription), 1)
	_, err = client.NotificationSubscriptionCRUDApi.UpdateNotificationSubscription(ctx,
		&udsf.UpdateNotificationSubscriptionRequest{
			RealmId: &realm, StorageId: &storage, SubscriptionId: &subscription,
			PatchItem: []models.PatchItem{{
				Op: models.PatchOperation_REPLACE, Path: "/callbackReference",
				Value: "http://127.0.0.1:1/other",
			}},
		})
	good(err)
	one, err := client.NotificationSubscriptionCRUDApi.GetNotificationSubscription(ctx,
		&udsf.GetNotificationSubscriptionRequest{
			RealmId: &realm, StorageId: &storage, SubscriptionId: &subscription,
		})
	good(err)
	same(one.NotificationSubscription.CallbackReference, "http://127.0.0.1:1/other")
	// It sends `client-id` as Go prints a structure, `{NFID }`, and can send no other form.
	_, err = client.NotificationSubscriptionCRUDApi.DeleteNotificationSubscription(ctx,
		&udsf.DeleteNotificationSubscriptionRequest{
			RealmId: &realm, StorageId: &storage, SubscriptionId: &subscription,
			ClientId: one.NotificationSubscription.ClientId,
		})
	good(err)
	_, err = client.NotificationSubscriptionCRUDApi.GetNotificationSubscription(ctx,
		&udsf.GetNotificationSubscriptionRequest{
			RealmId: &realm, StorageId: &storage, SubscriptionId: &subscription,
		})
	same(status(err), http.StatusNotFound)
	fmt.Println("ok subscriptions")

	equal := models.SearchExpression{Op: models.ComparisonOperator_EQ, Tag: "ueId", Value: "2"}
	found, err := client.RecordCRUDApi.SearchRecord(ctx, &udsf.SearchRecordRequest{
		RealmId: &realm, StorageId: &storage, Filter: &equal,
	})
	good(err)
	same(found.RecordSearchResult.Count, int32(1))
	deleted, err := client.RecordCRUDApi.BulkDeleteRecords(ctx, &udsf.BulkDeleteRecordsRequest{
		RealmId: &realm, StorageId: &storage, Filter: &equal,
	})
	good(err)
	same(deleted.RecordIdList.RecordIdList, []string{"free5gc-2"})
	_, err = client.RecordCRUDApi.DeleteRecord(ctx, &udsf.DeleteRecordRequest{
		RealmId: &realm, StorageId: &storage, RecordId: &record,
	})
	good(err)
	_, err = client.RecordCRUDApi.GetRecord(ctx, &udsf.GetRecordRequest{
		RealmId: &realm, StorageId: &storage, RecordId: &record,
	})
	same(status(err), http.StatusNotFound)
	fmt.Println("ok records")

	timers()
	fmt.Println("ok timers")
}

// timers starts, reads, changes, finds and stops timers by the generated client of Nudsf_Timer.
func timers() {
	configuration := timer.NewConfiguration()
	configuration.SetBasePath(root)
	client := timer.NewAPIClient(configuration)
	id, later := "free5gc", time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)
	wanted := models.Timer{
		TimerId: id, Expires: &later, MetaTags: map[string][]string{"ueId": {"7"}}, DeleteAfter: 5,
	}
	_, err := client.TimerStartApi.CreateOrModifyTimer(ctx, &timer.CreateOrModifyTimerRequest{
		RealmId: &realm, StorageId: &storage, TimerId: &id, Timer: &wanted,
	})
	good(err)
	got, err := client.TimerGetApi.GetTimer(ctx, &timer.GetTimerRequest{
		RealmId: &realm, StorageId: &storage, TimerId: &id,
	})
	good(err)
	same(got.Timer, wanted)
	_, err = client.TimerUpdateApi.UpdateTimer(ctx, &timer.UpdateTimerRequest{
		RealmId: &realm, StorageId: &storage, TimerId: &id, PatchItem: []models.PatchItem{
			{Op: models.PatchOperation_REPLACE, Path: "/deleteAfter", Value: 9},
		},
	})
	good(err)
	got, err = client.TimerGetApi.GetTimer(ctx, &timer.GetTimerRequest{
		RealmId: &realm, StorageId: &storage, TimerId: &id,
	})
	good(err)
	same(got.Timer.DeleteAfter, int32(9))
	equal := models.SearchExpression{Op: models.ComparisonOperator_EQ, Tag: "ueId", Value: "7"}
	found, err := client.TimerSearchApi.SearchTimer(ctx, &timer.SearchTimerRequest{
		RealmId: &realm, StorageId: &storage, Filter: &equal,
	})
	good(err)
	same(found.TimerIdList.TimerIds, []string{id})
	deleted, err := client.TimersDeleteApi.DeleteTimers(ctx, &timer.DeleteTimersRequest{
		RealmId: &realm, StorageId: &storage, Filter: &equal,
	})
	good(err)
	same(deleted.TimerIdList.TimerIds, []string{id})
	_, err = client.TimerStartApi.CreateOrModifyTimer(ctx, &timer.CreateOrModifyTimerRequest{
		RealmId: &realm, StorageId: &storage, TimerId: &id, Timer: &wanted,
	})
	good(err)
	_, err = client.TimerStopApi.DeleteTimer(ctx, &timer.DeleteTimerRequest{
		RealmId: &realm, StorageId: &storage, TimerId: &id,
	})
	good(err)
	_, err = client.TimerGetApi.GetTimer(ctx, &timer.GetTimerRequest{
		RealmId: &realm, StorageId: &storage, TimerId: &id,
	})
	same(status(err), http.StatusNotFound)
}
