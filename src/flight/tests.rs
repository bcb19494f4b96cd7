use std::{future::Future, pin::pin, task::Poll};

use super::*;
use crate::core::fixtures::request;

fn id(n: u8) -> RecordId {
    RecordId::from_bytes([n; 32])
}

fn lead(flights: &Arc<Flights>, n: u8) -> Seat {
    match flights.board(id(n), &request("a")) {
        Boarding::Lead(seat) => seat,
        Boarding::Join(_) => panic!("somebody leads already"),
    }
}

fn join(flights: &Arc<Flights>, n: u8) -> Arc<Flight> {
    match flights.board(id(n), &request("a")) {
        Boarding::Join(flight) => flight,
        Boarding::Lead(_) => panic!("nobody leads"),
    }
}

async fn is_pending<F: Future>(future: &mut std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

#[tokio::test]
async fn all_who_joined_get_what_it_lands_with() {
    let flights = Flights::new();
    let seat = lead(&flights, 1);
    let waiters: Vec<Waiter> = (0..100)
        .map(|_| join(&flights, 1).wait(100).expect("room"))
        .collect();
    seat.running();
    seat.land(Landing::TooLarge);
    for waiter in waiters {
        assert!(matches!(waiter.landing().await, Landing::TooLarge));
    }
}

#[tokio::test]
async fn a_landing_before_the_wait_is_not_lost() {
    let flights = Flights::new();
    let seat = lead(&flights, 1);
    let flight = join(&flights, 1);
    seat.running();
    seat.land(Landing::TooLarge);
    let waiter = flight.wait(1).expect("room");
    assert!(matches!(waiter.landing().await, Landing::TooLarge));
    assert_eq!(flight.executes(&request("a")).await, None, "it has landed");
}

#[tokio::test]
async fn who_comes_after_the_landing_leads_anew() {
    let flights = Flights::new();
    lead(&flights, 1).land(Landing::TooLarge);
    drop(lead(&flights, 1));
    drop(lead(&flights, 1));
}

#[tokio::test]
async fn another_request_is_told_apart_once_the_flight_runs() {
    let flights = Flights::new();
    let seat = lead(&flights, 1);
    let flight = join(&flights, 1);
    let other = request("b");
    let mut early = pin!(flight.executes(&other));
    assert!(
        is_pending(&mut early).await,
        "nobody knows yet whose key it is"
    );
    seat.running();
    assert_eq!(early.await, Some(false));
    assert_eq!(flight.executes(&request("a")).await, Some(true));
}

#[tokio::test]
async fn a_dropped_seat_tells_what_it_can() {
    let flights = Flights::new();
    let before = lead(&flights, 1);
    let waiter = join(&flights, 1).wait(1).expect("room");
    drop(before);
    assert!(matches!(waiter.landing().await, Landing::NotStarted));

    let running = lead(&flights, 1);
    running.running();
    let waiter = join(&flights, 1).wait(1).expect("room");
    drop(running);
    assert!(matches!(
        waiter.landing().await,
        Landing::Failed(Problem::UpstreamFailed)
    ));
}

#[tokio::test]
async fn places_are_bounded_and_given_up() {
    let flights = Flights::new();
    let seat = lead(&flights, 1);
    let flight = join(&flights, 1);
    let first = flight.wait(2).expect("room");
    let _second = flight.wait(2).expect("room");
    assert!(flight.wait(2).is_none());
    drop(first);
    assert!(
        flight.wait(2).is_some(),
        "who leaves makes room, and takes nothing along"
    );
    drop(seat);
}

#[tokio::test]
async fn flights_do_not_meet() {
    let flights = Flights::new();
    // Same shard, other record.
    let one = lead(&flights, 1);
    let two = lead(&flights, 65);
    let waiter = join(&flights, 65).wait(1).expect("room");
    drop(one);
    let mut landing = pin!(waiter.landing());
    assert!(is_pending(&mut landing).await);
    drop(two);
    assert!(matches!(landing.await, Landing::NotStarted));
}

#[tokio::test]
async fn a_flight_is_known_from_its_boarding_to_its_landing() {
    let flights = Flights::new();
    assert!(flights.of(&id(1)).is_none());
    let seat = lead(&flights, 1);
    assert!(
        flights.of(&id(1)).is_some(),
        "its leader may be given the claim at any moment"
    );
    seat.running();
    assert!(flights.of(&id(1)).is_some());
    seat.land(Landing::TooLarge);
    assert!(flights.of(&id(1)).is_none());
}
