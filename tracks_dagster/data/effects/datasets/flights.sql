-- flights: what the classifier learns from.
-- From the checked text columns of `landed` (flights that have an arrival delay) to features that
-- are known before landing, and the label. Order: as in the source, which `row` counts.
-- A time of day is written as 515 for 5:15.
create macro minute_of_day(clock) as
    (clock::double::integer // 100 * 60 + clock::double::integer % 100)::integer;

create table snapshot_rows as
select
    row_number() over (order by row) - 1 as position,
    month::double::integer as month,
    isodow(date::date)::integer as day_of_week,
    minute_of_day(sched_dep_time) as scheduled_departure_minute,
    minute_of_day(sched_arr_time) as scheduled_arrival_minute,
    dep_delay::double::integer as departure_delay_minutes,
    distance::double::integer as distance_miles,
    (origin = 'JFK')::integer as from_jfk,
    (origin = 'LGA')::integer as from_lga,
    (arr_delay::double >= 15)::integer as late
from landed
order by row;
